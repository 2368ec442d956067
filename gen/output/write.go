package output

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// Files of a write under way, beside the ones they will replace. The go tool
// ignores names that begin with a dot.
const (
	stagedSuffix = ".shardgen-new"
	backupSuffix = ".shardgen-old"
)

// Write makes the directory hold exactly the Set's files, besides those that
// are not shardgen's, and returns what it did. Files that are as they should be
// are not touched. On an error all files are as they were, unless it says
// otherwise.
func (s *Set) Write(dir string) (*Report, error) { return s.write(osFS{}, dir) }

func (s *Set) write(system fileSystem, dir string) (*Report, error) {
	r, err := s.compare(system, dir)
	if err != nil {
		return nil, err
	}
	if !r.Drift() {
		return r, nil
	}
	w := &writer{system: system, dir: dir}
	if err := w.run(r.Changes); err != nil {
		return nil, fmt.Errorf("writing to %s: %w", dir, err)
	}
	return r, nil
}

// writer replaces files in three steps: stage writes every new file beside its
// place, commit renames, clean removes what is left over.
type writer struct {
	system fileSystem
	dir    string
	made   bool     // the directory is ours
	staged []string // names whose new content lies beside them
	saved  []string // names whose old content lies beside them
	undo   []func() error
}

func (w *writer) run(changes []Change) error {
	if err := w.prepare(); err != nil {
		return errors.Join(err, w.rollBack())
	}
	for _, c := range changes {
		if err := w.stage(c); err != nil {
			return errors.Join(err, w.rollBack())
		}
	}
	for _, c := range changes {
		if err := w.commit(c); err != nil {
			return errors.Join(err, w.rollBack())
		}
	}
	if err := w.system.SyncDir(w.dir); err != nil {
		return errors.Join(err, w.rollBack())
	}
	return w.clean()
}

// prepare makes the directory and removes what an interrupted run left.
func (w *writer) prepare() error {
	entries, err := w.system.ReadDir(w.dir)
	if errors.Is(err, fs.ErrNotExist) {
		w.made = true
		return w.system.MkdirAll(w.dir)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, "."+Prefix) || !(strings.HasSuffix(name, stagedSuffix) || strings.HasSuffix(name, backupSuffix)) {
			continue
		}
		if err := w.system.Remove(filepath.Join(w.dir, name)); err != nil {
			return fmt.Errorf("left by an interrupted run: %w", err)
		}
	}
	return err
}

// stage writes a file's new content beside it, and a copy of the old for rollBack.
func (w *writer) stage(c Change) error {
	if c.Action == Create || c.Action == Update {
		w.staged = append(w.staged, c.Name)
		if err := w.writeFile(w.stagedPath(c.Name), c.new); err != nil {
			return err
		}
	}
	if c.Action == Update {
		w.saved = append(w.saved, c.Name)
		return w.writeFile(w.backupPath(c.Name), c.old)
	}
	return nil
}

// commit puts one file in its place, or moves it out of the way, and notes how
// to take that back.
func (w *writer) commit(c Change) error {
	path := filepath.Join(w.dir, c.Name)
	switch c.Action {
	case Keep:
		return nil
	case Remove:
		w.saved = append(w.saved, c.Name)
		if err := w.system.Rename(path, w.backupPath(c.Name)); err != nil {
			return err
		}
	default:
		if err := w.system.Rename(w.stagedPath(c.Name), path); err != nil {
			return err
		}
	}
	w.undo = append(w.undo, func() error { return w.takeBack(c) })
	return nil
}

func (w *writer) takeBack(c Change) error {
	path := filepath.Join(w.dir, c.Name)
	if c.Action == Create {
		return w.system.Remove(path)
	}
	return w.system.Rename(w.backupPath(c.Name), path)
}

// rollBack restores the files and removes what was staged. Its own errors say
// what is not as it was; the old content then lies in the backup.
func (w *writer) rollBack() error {
	var faults []error
	for i := len(w.undo) - 1; i >= 0; i-- {
		if err := w.undo[i](); err != nil {
			faults = append(faults, fmt.Errorf("this file could not be put back, its old content is in *%s: %w", backupSuffix, err))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	err := w.removeLeftovers()
	if w.made {
		err = errors.Join(err, ignoreMissing(w.system.Remove(w.dir)))
	}
	return err
}

// clean removes the old content once the new one is in place.
func (w *writer) clean() error {
	if err := w.removeLeftovers(); err != nil {
		return fmt.Errorf("the generated files are complete, but old ones are left beside them: %w", err)
	}
	return nil
}

func (w *writer) removeLeftovers() error {
	var faults []error
	for _, name := range w.staged {
		faults = append(faults, ignoreMissing(w.system.Remove(w.stagedPath(name))))
	}
	for _, name := range w.saved {
		faults = append(faults, ignoreMissing(w.system.Remove(w.backupPath(name))))
	}
	return errors.Join(faults...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// writeFile writes a new file to the disk. A full disk may show only in Sync or
// Close.
func (w *writer) writeFile(path string, content []byte) error {
	f, err := w.system.Create(path)
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func (w *writer) stagedPath(name string) string { return filepath.Join(w.dir, "."+name+stagedSuffix) }

func (w *writer) backupPath(name string) string { return filepath.Join(w.dir, "."+name+backupSuffix) }
