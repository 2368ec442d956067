// Package spec is the language: it turns the YAML of a model spec into a typed
// Model, or into diagnostics that name the place, the fault and the fix.
//
// Parse walks YAML nodes itself, driven by one table of keys for each map of the
// language (fields.go). The same tables give the JSON Schema and the reference
// page, so the three cannot disagree. What YAML readers disagree on (octal
// numbers, `yes`, a key given twice) is refused, and so are keys whose effect is
// not built yet. What needs repeats expanded, such as ties and duplicate names,
// is the planner's to check, with codes of the same catalogue.
//
// It does no I/O. It may import the runtime's leaves and nothing else of the
// project.
package spec
