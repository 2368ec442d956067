// Package spec is the language: it turns the YAML of a model spec into a typed
// Model, or into diagnostics that name the place, the fault and the fix.
package spec
