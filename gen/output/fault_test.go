package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// faultFS fails at the operation with number at, and from then on if lasting.
// A write that fails has written half.
type faultFS struct {
	osFS
	at, count int
	lasting   bool
	hit       bool
}

func (f *faultFS) fault(operation string) error {
	f.count++
	if f.count == f.at || (f.lasting && f.count > f.at) {
		f.hit = true
		return fmt.Errorf("%s: %w", operation, syscall.ENOSPC)
	}
	return nil
}

func (f *faultFS) ReadDir(dir string) ([]fs.DirEntry, error) {
	if err := f.fault("readdir " + dir); err != nil {
		return nil, err
	}
	return f.osFS.ReadDir(dir)
}

func (f *faultFS) ReadFile(path string) ([]byte, error) {
	if err := f.fault("read " + path); err != nil {
		return nil, err
	}
	return f.osFS.ReadFile(path)
}

func (f *faultFS) MkdirAll(dir string) error {
	return errors.Join(f.fault("mkdir "+dir), f.osFS.MkdirAll(dir))
}

func (f *faultFS) Create(path string) (file, error) {
	if err := f.fault("create " + path); err != nil {
		return nil, err
	}
	created, err := f.osFS.Create(path)
	return &faultFile{created, f}, err
}

func (f *faultFS) Rename(from, to string) error {
	if err := f.fault("rename " + from); err != nil {
		return err
	}
	return f.osFS.Rename(from, to)
}

func (f *faultFS) Remove(path string) error {
	if err := f.fault("remove " + path); err != nil {
		return err
	}
	return f.osFS.Remove(path)
}

func (f *faultFS) SyncDir(dir string) error {
	if err := f.fault("sync " + dir); err != nil {
		return err
	}
	return f.osFS.SyncDir(dir)
}

func (f *faultFS) Lock(path string, wait time.Duration) (lock, error) {
	if err := f.fault("lock " + path); err != nil {
		return nil, err
	}
	held, err := f.osFS.Lock(path, wait)
	return &faultLock{held, f}, err
}

type faultLock struct {
	lock
	system *faultFS
}

func (l *faultLock) Journal() ([]byte, error) {
	if err := l.system.fault("read journal"); err != nil {
		return nil, err
	}
	return l.lock.Journal()
}

func (l *faultLock) SetJournal(text []byte) error {
	if err := l.system.fault("write journal"); err != nil {
		return errors.Join(err, l.lock.SetJournal(text[:len(text)/2]))
	}
	return l.lock.SetJournal(text)
}

func (l *faultLock) Release() error {
	if err := l.system.fault("release"); err != nil {
		return errors.Join(err, l.lock.Abandon())
	}
	return l.lock.Release()
}

type faultFile struct {
	file
	system *faultFS
}

func (f *faultFile) Write(b []byte) (int, error) {
	if err := f.system.fault("write"); err != nil {
		n, _ := f.file.Write(b[:len(b)/2])
		return n, err
	}
	return f.file.Write(b)
}

func (f *faultFile) Sync() error { return errors.Join(f.system.fault("sync"), f.file.Sync()) }

func (f *faultFile) Close() error { return errors.Join(f.system.fault("close"), f.file.Close()) }

// The old folder holds a file of each kind: kept, updated, removed, by hand.
var (
	oldSet = set(generated("zz_keep.go", "keep"), generated("zz_one.go", "old one"), generated("zz_two.go", "old two"), generated("zz_gone.go", "gone"))
	newSet = set(generated("zz_keep.go", "keep"), generated("zz_one.go", "new one"), generated("zz_two.go", "new two"), generated("zz_more.go", "more"))
)

func oldFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	mustWrite(t, oldSet, dir)
	put(t, dir, "zz_hand.go", "package m\n")
	return dir
}

func newTree(t *testing.T) map[string]string {
	t.Helper()
	dir := oldFolder(t)
	mustWrite(t, newSet, dir)
	return tree(t, dir)
}

// visible leaves out the files that the go tool does not see.
func visible(files map[string]string) map[string]string {
	kept := map[string]string{}
	for name, content := range files {
		if !strings.HasPrefix(name, ".") {
			kept[name] = content
		}
	}
	return kept
}

func TestOneFailureAnywhereLeavesTheOldFilesOrTheNew(t *testing.T) {
	after := newTree(t)
	for at := 1; ; at++ {
		dir := oldFolder(t)
		before := tree(t, dir)
		system := &faultFS{at: at}
		_, err := newSet.write(system, dir)
		if !system.hit {
			if err != nil {
				t.Fatalf("no fault injected, but error %v", err)
			}
			return
		}
		if err == nil {
			t.Errorf("operation %d failed, but Write did not", at)
		}
		got := tree(t, dir)
		switch {
		case equalTrees(got, before):
		case equalTrees(visible(got), after) && strings.Contains(err.Error(), "the generated files are complete"):
		default:
			t.Errorf("operation %d (%v) left neither the old files nor the new: %v", at, err, got)
		}
	}
}

func TestADiskThatStaysBrokenLosesNoContent(t *testing.T) {
	after := newTree(t)
	for at := 1; ; at++ {
		dir := oldFolder(t)
		before := tree(t, dir)
		system := &faultFS{at: at, lasting: true}
		_, err := newSet.write(system, dir)
		if !system.hit {
			return
		}
		if err == nil {
			t.Errorf("operations from %d on failed, but Write did not", at)
		}
		got := tree(t, dir)
		for name, content := range before {
			if got[name] != content && got[name] != after[name] && got["."+name+backupSuffix] != content {
				t.Errorf("operations from %d on: %s holds %q", at, name, got[name])
			}
		}
		if !equalTrees(visible(got), before) && !strings.Contains(err.Error(), "could not be put back") && !strings.Contains(err.Error(), "are complete") {
			t.Errorf("operations from %d on: the files changed, but the error does not say so: %v", at, err)
		}
	}
}

func TestAFailureInANewFolderLeavesNoFolder(t *testing.T) {
	for at := 1; ; at++ {
		dir := filepath.Join(t.TempDir(), "new")
		system := &faultFS{at: at}
		_, err := newSet.write(system, dir)
		if !system.hit {
			return
		}
		if err == nil {
			t.Errorf("operation %d failed, but Write did not", at)
		}
		if _, statErr := os.Stat(dir); !errors.Is(statErr, fs.ErrNotExist) && !strings.Contains(err.Error(), "are complete") {
			t.Errorf("operation %d (%v) left %v", at, err, tree(t, dir))
		}
	}
}
