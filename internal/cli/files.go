package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// standardInput is the argument that stands for standard input or output.
const standardInput = "-"

// maxSpecBytes bounds what is read into memory; the language's own limit is far
// below it and names the place.
const maxSpecBytes = 64 << 20

// readSpec returns a spec's text and the name that diagnostics give it.
func (c *call) readSpec(path string) (name string, src []byte, err error) {
	if path == standardInput {
		src, err = readLimited(c.stdin, "<stdin>")
		return "<stdin>", src, err
	}
	if strings.HasSuffix(path, ".safetensors") {
		return "", nil, fmt.Errorf("%s is a checkpoint, not a spec: run \"shardgen import %s --out model.yaml\" first", path, path)
	}
	file, err := openFile(path)
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	src, err = readLimited(file, path)
	return path, src, err
}

func readLimited(from io.Reader, path string) ([]byte, error) {
	src, err := io.ReadAll(io.LimitReader(from, maxSpecBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("can't read %s: %w", path, cause(err))
	case len(src) > maxSpecBytes:
		return nil, fmt.Errorf("%s is too large for a spec: expected at most %d MiB of YAML text", path, maxSpecBytes>>20)
	}
	return src, nil
}

// openFile opens a file to read. Its errors name the path and the fix.
func openFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s does not exist: check the path and the current folder%s", path, specsNearby(filepath.Dir(path)))
	case err != nil:
		return nil, fmt.Errorf("can't read %s: %w", path, cause(err))
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder: name the file in it%s", path, specsNearby(path))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, openError(path, err)
	}
	return file, nil
}

func openError(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s may not be read by this user: allow it, for example with \"chmod u+r\"", path)
	}
	return fmt.Errorf("can't open %s: %w", path, cause(err))
}

// specsNearby names up to three YAML files of a folder, for a message.
func specsNearby(folder string) string {
	found, _ := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if len(found) == 0 {
		return ""
	}
	return "; there is " + strings.Join(found[:min(len(found), 3)], ", ")
}

// cause drops operation and path from an error of package os, where the message
// around it names both.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// createFile writes a file that must not exist yet, with its folder. fix says
// what to do if it does.
func createFile(path string, content []byte, fix string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("can't make the folder of %s: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s exists already and is left as it is: %s", path, fix)
	case err != nil:
		return fmt.Errorf("can't create %s: %w", path, cause(err))
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		os.Remove(path)
		return fmt.Errorf("can't write %s: %w", path, err)
	}
	return nil
}
