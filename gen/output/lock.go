package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// lockName is the file that a run holds while it writes to a directory. Its
// content, the journal, names the run's temporary files, so that what a killed
// run leaves can be told from files of the user. The system frees the lock of a
// process that dies.
const lockName = "." + Prefix + "shardgen.lock"

// journalHeader begins every journal.
const journalHeader = "Temporary files of a run of shardgen:\n"

// lockWait bounds the wait for another run in the same directory.
const lockWait = 30 * time.Second

// lock is a held lock file.
type lock interface {
	Journal() ([]byte, error)
	SetJournal(text []byte) error
	Release() error // removes the file and lets the next run in
	Abandon() error // lets the next run in, which finds the journal
}

var errLocked = errors.New("another run of shardgen writes to this folder: wait for it to end, and run it again")

// Lock takes the lock file at path, which it makes if there is none. Whoever
// held it before has removed the file; then the lock is on a file without a
// name, which nobody else would meet, and has to be taken again.
func (osFS) Lock(path string, wait time.Duration) (lock, error) {
	for deadline := time.Now().Add(wait); ; {
		if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
			return nil, &ConflictError{path, "it is " + kindOf(info.Mode().Type()), "remove it"}
		}
		f, err := openLocked(path, time.Until(deadline))
		if err != nil {
			return nil, err
		}
		if named(f, path) {
			return &heldLock{f, path}, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// lockedFile is an open file that nobody else has open by openLocked.
type lockedFile interface {
	io.ReadWriteSeeker
	io.Closer
	Stat() (fs.FileInfo, error)
	Truncate(size int64) error
	Sync() error
}

// openLocked waits for a lock, which the system itself would do without end.
// File systems without locks give the file unlocked.
func openLocked(path string, wait time.Duration) (lockedFile, error) {
	type result struct {
		f   *lockedfile.File
		err error
	}
	opened := make(chan result, 1)
	go func() {
		f, err := lockedfile.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		opened <- result{f, err}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case r := <-opened:
		if errors.Is(r.err, errors.ErrUnsupported) {
			return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		}
		if r.err != nil {
			return nil, r.err
		}
		return r.f, nil
	case <-timer.C:
		go func() {
			if r := <-opened; r.err == nil {
				r.f.Close()
			}
		}()
		return nil, errLocked
	}
}

// named tells whether a path is still that of an open file.
func named(f lockedFile, path string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(held, there)
}

// heldLock is a lock on the disk.
type heldLock struct {
	file lockedFile
	path string
}

func (l *heldLock) Journal() ([]byte, error) {
	if _, err := l.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(l.file)
}

func (l *heldLock) SetJournal(text []byte) error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	if _, err := l.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := l.file.Write(text); err != nil {
		return err
	}
	return l.file.Sync()
}

// Release leaves an empty file where the system removes none that is open.
func (l *heldLock) Release() error {
	err := l.file.Truncate(0)
	if runtime.GOOS != "windows" {
		err = errors.Join(err, os.Remove(l.path))
	}
	return errors.Join(err, l.file.Close())
}

// Abandon leaves no file without a journal.
func (l *heldLock) Abandon() error {
	if info, err := l.file.Stat(); err == nil && info.Size() == 0 {
		return l.Release()
	}
	return l.file.Close()
}

// journal lists the names of temporary files.
func journal(names []string) []byte {
	return []byte(journalHeader + strings.Join(names, "\n") + "\n")
}

// journalNames reads a journal back, also one that was cut off while it was
// written. ok is false for a text that is no journal.
func journalNames(text []byte) (names []string, ok bool) {
	rest, ok := strings.CutPrefix(string(text), journalHeader)
	if !ok {
		return nil, strings.HasPrefix(journalHeader, string(text))
	}
	for line := range strings.Lines(rest) {
		if name, whole := strings.CutSuffix(line, "\n"); whole && isTemporary(name) {
			names = append(names, name)
		}
	}
	return names, true
}

// isTemporary tells whether a name has the form of a temporary file's.
func isTemporary(name string) bool {
	return name == filepath.Base(name) && strings.HasPrefix(name, "."+Prefix) &&
		(strings.HasSuffix(name, stagedSuffix) || strings.HasSuffix(name, backupSuffix))
}

// finishInterrupted removes what an interrupted run left, as its journal says.
func (w *writer) finishInterrupted() error {
	text, err := w.lock.Journal()
	if err != nil {
		return err
	}
	names, ok := journalNames(text)
	if !ok {
		return &ConflictError{filepath.Join(w.dir, lockName), "it was not written by shardgen", "rename it"}
	}
	for _, name := range names {
		if err := ignoreMissing(w.system.Remove(filepath.Join(w.dir, name))); err != nil {
			return fmt.Errorf("left by an interrupted run: %w", err)
		}
	}
	return nil
}

// announce writes the journal of this run. A name that is taken is not ours.
func (w *writer) announce(changes []Change) error {
	var names []string
	for _, c := range changes {
		if c.Action == Create || c.Action == Update {
			names = append(names, stagedName(c.Name))
		}
		if c.Action == Update || c.Action == Remove {
			names = append(names, backupName(c.Name))
		}
	}
	entries, err := w.system.ReadDir(w.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if slices.Contains(names, entry.Name()) {
			return &ConflictError{filepath.Join(w.dir, entry.Name()), "it has the name of a temporary file, but is not one of an interrupted run", "rename or remove it"}
		}
	}
	return w.lock.SetJournal(journal(names))
}
