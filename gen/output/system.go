package output

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"time"
)

// fileSystem is what this package does to a disk. Tests make any of it fail.
type fileSystem interface {
	ReadDir(dir string) ([]fs.DirEntry, error)
	ReadFile(path string) ([]byte, error)
	MkdirAll(dir string) error
	Create(path string) (file, error) // fails where the path exists
	Rename(from, to string) error
	Remove(path string) error
	SyncDir(dir string) error // makes renames in it durable
	Lock(path string, wait time.Duration) (lock, error)
}

// file is a file being written.
type file interface {
	io.WriteCloser
	Sync() error
}

// osFS is the system's own.
type osFS struct{}

func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) ReadFile(path string) ([]byte, error)      { return os.ReadFile(path) }
func (osFS) MkdirAll(dir string) error                 { return os.MkdirAll(dir, 0o777) }
func (osFS) Rename(from, to string) error              { return os.Rename(from, to) }
func (osFS) Remove(path string) error                  { return os.Remove(path) }

func (osFS) Create(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// SyncDir is for systems that can: others refuse the call itself.
func (osFS) SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, d.Close())
}
