package output

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
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
	if err != nil || !r.Drift() && !r.interrupted {
		return r, err
	}
	w := &writer{system: system, dir: dir}
	if err := w.begin(); err != nil {
		return nil, fmt.Errorf("writing to %s: %w", dir, err)
	}
	if r, err = s.compare(system, dir); err != nil { // another run may have written since
		return nil, errors.Join(err, w.end())
	}
	if err := w.run(r.Changes); err != nil {
		return nil, fmt.Errorf("writing to %s: %w", dir, err)
	}
	return r, nil
}

// writer replaces files in three steps: stage writes every new file beside its
// place, commit renames, clean removes what is left over. No other run writes to
// the directory meanwhile.
type writer struct {
	system fileSystem
	dir    string
	lock   lock
	made   bool     // the directory is ours
	staged []string // names whose new content lies beside them
	saved  []string // names whose old content lies beside them
	undo   []func() error
}

// begin makes the directory, waits for other runs in it, and removes what an
// interrupted one left.
func (w *writer) begin() error {
	err := w.takeLock()
	for tries := 0; tries < 10 && errors.Is(err, fs.ErrNotExist); tries++ {
		err = w.takeLock() // the run before us removed the folder that it had made
	}
	if err != nil {
		return errors.Join(err, w.removeFolder())
	}
	if err := w.finishInterrupted(); err != nil {
		return errors.Join(err, w.lock.Abandon(), w.removeFolder())
	}
	return nil
}

func (w *writer) takeLock() error {
	_, err := w.system.ReadDir(w.dir)
	if errors.Is(err, fs.ErrNotExist) {
		w.made = true
		err = w.system.MkdirAll(w.dir)
	}
	if err != nil {
		return err
	}
	w.lock, err = w.system.Lock(filepath.Join(w.dir, lockName), lockWait)
	return err
}

// end lets other runs in, and takes back what begin made.
func (w *writer) end() error {
	return errors.Join(w.lock.Release(), w.removeFolder())
}

// removeFolder removes the directory if it is ours and nobody uses it.
func (w *writer) removeFolder() error {
	if !w.made {
		return nil
	}
	err := ignoreMissing(w.system.Remove(w.dir))
	if errors.Is(err, fs.ErrExist) { // it is not empty
		return nil
	}
	return err
}

func (w *writer) run(changes []Change) error {
	if err := w.announce(changes); err != nil {
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

// stage writes a file's new content beside it, and a copy of the old for rollBack.
func (w *writer) stage(c Change) error {
	if c.Action == Create || c.Action == Update {
		if err := w.writeFile(&w.staged, stagedName(c.Name), c.new); err != nil {
			return err
		}
	}
	if c.Action == Update || c.Action == Remove {
		return w.writeFile(&w.saved, backupName(c.Name), c.old)
	}
	return nil
}

// commit puts one file in its place, or removes it, and notes how to take that
// back.
func (w *writer) commit(c Change) error {
	var err error
	switch path := filepath.Join(w.dir, c.Name); c.Action {
	case Keep:
		return nil
	case Remove:
		err = w.system.Remove(path)
	case Create, Update:
		err = w.system.Rename(filepath.Join(w.dir, stagedName(c.Name)), path)
	}
	if err == nil {
		w.undo = append(w.undo, func() error { return w.takeBack(c) })
	}
	return err
}

func (w *writer) takeBack(c Change) error {
	path := filepath.Join(w.dir, c.Name)
	if c.Action == Create {
		return w.system.Remove(path)
	}
	return w.system.Rename(filepath.Join(w.dir, backupName(c.Name)), path)
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
	if len(faults) == 0 {
		faults = append(faults, w.removeLeftovers())
	}
	if err := errors.Join(faults...); err != nil {
		return errors.Join(err, w.lock.Abandon())
	}
	return w.end()
}

// clean removes the old content once the new one is in place.
func (w *writer) clean() error {
	err := w.removeLeftovers()
	if err == nil {
		err = w.lock.Release()
	} else {
		err = errors.Join(err, w.lock.Abandon())
	}
	if err != nil {
		return fmt.Errorf("the generated files are complete, but old ones are left beside them: %w", err)
	}
	return nil
}

func (w *writer) removeLeftovers() error {
	var faults []error
	for _, name := range slices.Concat(w.staged, w.saved) {
		faults = append(faults, ignoreMissing(w.system.Remove(filepath.Join(w.dir, name))))
	}
	return errors.Join(faults...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// writeFile writes a new file to the disk and adds its name to list once it is
// there. A full disk may show only in Sync or Close.
func (w *writer) writeFile(list *[]string, name string, content []byte) error {
	f, err := w.system.Create(filepath.Join(w.dir, name))
	if err != nil {
		return err
	}
	*list = append(*list, name)
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func stagedName(name string) string { return "." + name + stagedSuffix }

func backupName(name string) string { return "." + name + backupSuffix }
