package emulated

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu/double"
	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/fatbuild"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

// AddPackage compiles the CUDA source of the generated package in folder for the
// machine, and returns the code that a descriptor must have for it. That is code
// itself where it has an image that nvcc made: the machine finds g++'s kernels
// under it. Where code is empty, or its image is, the code that is returned has a
// stand-in for the image.
func (m *Machine) AddPackage(t testing.TB, folder string, code device.Code) device.Code {
	t.Helper()
	made, err := m.Add(context.Background(), folder, code)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// Add is AddPackage for programs. It can be called by many goroutines.
func (m *Machine) Add(ctx context.Context, folder string, code device.Code) (device.Code, error) {
	made, err := m.add(ctx, folder, code)
	if err != nil {
		return device.Code{}, fmt.Errorf("emulated machine: kernels of %s: %w", folder, err)
	}
	return made, nil
}

func (m *Machine) add(ctx context.Context, folder string, code device.Code) (device.Code, error) {
	files, err := readSource(folder)
	if err != nil {
		return code, err
	}
	hash, err := fatbuild.SourceHash(files, cuemit.KernelsFile)
	if err != nil {
		return code, err
	}
	image := ""
	if code.Source != "" {
		if code.Source != hash {
			return code, fmt.Errorf("the package says that its CUDA source is %.12s, the files are %.12s; generate it again", code.Source, hash)
		}
		if image, _, err = fatbin.Open(code.Fatbin); err != nil {
			return code, err
		}
	}
	if image == "" {
		code = StandIn(filepath.Base(folder), hash)
		image, _, _ = fatbin.Open(code.Fatbin) // what StandIn sealed
	}
	return code, m.compile(ctx, files, []byte(image))
}

func readSource(folder string) ([]output.File, error) {
	var files []output.File
	for _, name := range []string{cuemit.KernelsFile, cuemit.LayoutFile} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		files = append(files, output.File{Name: name, Content: content})
	}
	return files, nil
}

// StandIn returns the code of a package that no nvcc compiled, with an image in
// it that only stands for its source: the machine has kernels for it once a
// folder with that source was added.
func StandIn(name, sourceHash string) device.Code {
	origin := name + ".yaml"
	return device.Code{
		Package: name, Command: output.Command(origin), Source: sourceHash,
		Fatbin: string(fatbin.Seal(double.Image(name+" "+sourceHash), fatbin.Record{Origin: origin, Source: sourceHash})),
	}
}

// compilers bounds how many compilers run at a time.
var compilers = make(chan struct{}, 2)

// compiled remembers the images that this process has added, with what they
// were compiled from.
var compiled sync.Map

// compile makes the kernels of files those of an image; the first is the .cu.
func (m *Machine) compile(ctx context.Context, files []output.File, image []byte) error {
	source, beside := string(files[0].Content), map[string]string{}
	for _, f := range files[1:] {
		beside[f.Name] = string(f.Content)
	}
	key := string(image) + source
	if _, done := compiled.Load(key); done {
		return nil
	}
	compilers <- struct{}{}
	defer func() { <-compilers }()
	if err := m.libraries.AddKernels(ctx, source, beside, image); err != nil {
		return err
	}
	compiled.Store(key, true)
	return nil
}
