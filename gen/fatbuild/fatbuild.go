// Package fatbuild turns the CUDA source of a generated package into the image of
// its kernels, and says which source an image was made from.
//
// It takes the files of package cuemit and adds the headers of cudasrc. It
// imports gen/output, runtime/fatbin, cudasrc and cudasrc/toolchain.
package fatbuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/cudasrc"
	"github.com/shardgen/shardgen/cudasrc/toolchain"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

// SourceHash returns the SHA-256, in hexadecimal, of all that decides what kernels
// do: the one of a package's CUDA files that has them, main, and shardgen's
// headers, by name, each as its name in quotes, its length in bytes and its
// content. The header of offsets that main includes does not count: what main
// takes from it, an assertion in main compares with the number that was planned.
// So a change of the spec that leaves the kernels alone leaves their image alone.
func SourceHash(files []output.File, main string) (string, error) {
	return hashWith(cudasrc.Headers, files, main)
}

// hashWith is SourceHash with other headers.
func hashWith(system fs.FS, files []output.File, main string) (string, error) {
	all, err := headers(system)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(files, func(f output.File) bool { return f.Name == main })
	if at < 0 {
		return "", fmt.Errorf("no file %s among a package's CUDA files", main)
	}
	all = append(all, files[at])
	slices.SortFunc(all, func(a, b output.File) int { return strings.Compare(a.Name, b.Name) })
	h := sha256.New()
	for _, f := range all {
		fmt.Fprintf(h, "%q %d\n", f.Name, len(f.Content))
		h.Write(f.Content)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// headers returns all files, with their paths as names.
func headers(system fs.FS) ([]output.File, error) {
	var list []output.File
	err := fs.WalkDir(system, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(system, path)
		list = append(list, output.File{Name: path, Content: content})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("CUDA headers: %w", err)
	}
	return list, nil
}

// Compile returns what a compiler makes of the CUDA files, of which main is the
// one with the kernels. The bytes do not depend on where it works.
func Compile(ctx context.Context, c *toolchain.Compiler, files []output.File, main string) (image []byte, err error) {
	folder, err := os.MkdirTemp("", "shardgen-kernels-")
	if err != nil {
		return nil, fmt.Errorf("folder to compile in: %w", err)
	}
	defer os.RemoveAll(folder)
	if err := cudasrc.Write(folder); err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(folder, f.Name), f.Content, 0o666); err != nil {
			return nil, fmt.Errorf("file to compile: %w", err)
		}
	}
	written := filepath.Join(folder, "kernels.fatbin")
	if err := c.Fatbin(ctx, filepath.Join(folder, main), written, folder); err != nil {
		return nil, err
	}
	image, err = readImage(written)
	if err != nil {
		return nil, fmt.Errorf("what %s wrote: %w", c.NVCC(), err)
	}
	return image, nil
}

// maxImageBytes is far more than any set of kernels needs.
const maxImageBytes = 256 << 20

func readImage(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	case info.Size() > maxImageBytes:
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d", filepath.Base(path), info.Size(), maxImageBytes)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return image, fatbin.CheckImage(string(image))
}
