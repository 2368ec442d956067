package spec

// Parse reads a spec. The path is only named in diagnostics. With any
// diagnostic the model is nil; all faults are reported at once, sorted by
// place, and source lines are kept for rendering.
func Parse(path string, src []byte) (*Model, Diagnostics) {
	w := &walker{vocabulary: vocabulary()}
	m := &Model{Path: path, Source: src}
	if root := w.load(src); root != nil {
		rootTable.read(w, value{node: root}, m)
	}
	if len(w.found) == 0 {
		return m, nil
	}
	return nil, w.diagnostics(path, src)
}

// diagnostics sorts what was found and cuts it to a number that can be read.
func (w *walker) diagnostics(path string, src []byte) Diagnostics {
	all := w.found.Locate(path, src)
	if len(all) <= maxDiagnostics {
		return all
	}
	last := Errorf(all[maxDiagnostics].Pos, CodeTooManyFaults, "more than %d faults, the others are not shown", maxDiagnostics).
		WithHint("mend these and run again")
	return append(all[:maxDiagnostics:maxDiagnostics], last).Locate(path, src)
}
