package output

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// Action is what a file needs, or what was done to it.
type Action uint8

// The actions. Keep is that of a file that is as it should be.
const (
	Keep Action = iota
	Create
	Update
	Remove
)

var actionNames = [...]string{Keep: "unchanged", Create: "created", Update: "updated", Remove: "removed"}

func (a Action) String() string { return actionNames[a] }

// Change is one file's part of a Report.
type Change struct {
	Name   string // without folder
	Action Action

	old, new []byte
}

// Report says for every file of a Set, and for every file that an earlier run
// left, what differs between directory and Set. Changes are sorted by name,
// files to remove last.
type Report struct {
	Dir     string
	Changes []Change

	interrupted bool // a run did not end, or is not at its end
}

// Drift reports whether the directory differs from what is generated.
func (r *Report) Drift() bool {
	for _, c := range r.Changes {
		if c.Action != Keep {
			return true
		}
	}
	return false
}

// Changed reports whether a file is not as it should be, or was not.
func (r *Report) Changed(name string) bool {
	return slices.ContainsFunc(r.Changes, func(c Change) bool { return c.Name == name && c.Action != Keep })
}

// OnlyChanged reports whether it is the only one.
func (r *Report) OnlyChanged(name string) bool {
	others := slices.ContainsFunc(r.Changes, func(c Change) bool { return c.Name != name && c.Action != Keep })
	return r.Changed(name) && !others
}

// Lines returns a line for each file, such as "updated gpt2small/zz_model.go".
func (r *Report) Lines() []string {
	var lines []string
	for _, c := range r.Changes {
		lines = append(lines, fmt.Sprintf("%v %s", c.Action, r.path(c.Name)))
	}
	return lines
}

// Diff returns the difference between the directory and what is generated, in
// unified format; empty where there is none.
func (r *Report) Diff() []byte {
	var b bytes.Buffer
	for _, c := range r.Changes {
		b.Write(c.diff(r.path(c.Name)))
	}
	return b.Bytes()
}

func (r *Report) path(name string) string { return filepath.ToSlash(filepath.Join(r.Dir, name)) }

func (c *Change) diff(path string) []byte {
	oldName, newName := path, path+" (generated)"
	switch c.Action {
	case Keep:
		return nil
	case Create:
		oldName = "/dev/null"
	case Remove:
		newName = "/dev/null"
	}
	if isFatbin(c.Name) || isBinary(c.old) || isBinary(c.new) {
		return fmt.Appendf(nil, "Binary files %s and %s differ\n", oldName, newName)
	}
	return diff.Diff(oldName, c.old, newName, c.new)
}

func isBinary(content []byte) bool { return !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0 }
