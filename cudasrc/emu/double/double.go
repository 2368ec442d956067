// Package double has stand-ins for NVIDIA's driver and for NCCL, for tests on
// machines without a GPU: shared libraries libcuda.so.1 and libnccl.so.2 with
// the calls that the Go runtime makes, so that all of its CUDA path runs on the
// CPU, ranks being goroutines on devices of their own. Where the environment
// variable EMU_SHARED names a folder, ranks may also be in different processes:
// see src/nccl/board.h.
//
// [Build] compiles them with g++ from folder src, whose files say what each does
// alike and what it does not: src/cuda/policy.cc the order of work,
// src/cuda/memory.cc memory, src/cuda/faults.cc faults to inject,
// src/nccl/collective.cc collectives. [Libraries.AddKernels] compiles a package's
// .cu with the emulator of package emu, so that the driver's double finds it when
// the package's image is loaded.
//
// The double is stricter than a GPU: streams are unordered where no event orders
// them, fresh memory holds garbage, freed memory can't be accessed, and ranks
// that call different collectives get an error, unless the fault "mixed" is set.
//
// It imports cudasrc/emu, purego, lockedfile and the standard library.
package double

import (
	"context"
	"embed"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu"
)

//go:embed src
var sources embed.FS

// Libraries are the compiled doubles, opened by this process.
type Libraries struct {
	CUDA    string        // path of libcuda.so.1
	NCCL    string        // path of libnccl.so.2
	Images  string        // folder of kernels, for EMU_IMAGES of other processes
	Compile time.Duration // how long g++ took, 0 where the cache had them

	folder string
	calls  control
}

// Build compiles the doubles and opens them. What was built from the same
// sources before is taken from dir, a folder for nothing else that many processes
// may share; it is made where it is missing.
func Build(ctx context.Context, dir string) (*Libraries, error) {
	l, err := build(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("CUDA double: %w", err)
	}
	return l, nil
}

func build(ctx context.Context, dir string) (*Libraries, error) {
	if err := emu.Available(); err != nil {
		return nil, err
	}
	folder, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	l := &Libraries{folder: folder, Images: filepath.Join(folder, "images")}
	if err := os.MkdirAll(l.Images, 0o755); err != nil {
		return nil, err
	}
	if err := l.compile(ctx); err != nil {
		return nil, err
	}
	return l, l.open()
}

// AddKernels makes the kernels of a .cu, with the files that it includes besides
// cudasrc's headers, those of an image: what cuModuleLoadData gets.
func (l *Libraries) AddKernels(ctx context.Context, source string, files map[string]string, image []byte) error {
	name, err := imageName(image)
	if err == nil {
		err = l.addKernels(ctx, source, files, name)
	}
	if err != nil {
		return fmt.Errorf("CUDA double: kernels: %w", err)
	}
	return nil
}

const (
	fatbinMagic       = 0xba55ed50
	fatbinHeaderBytes = 16
	textMagic         = "EMU0"
)

// Image returns an image of a package that was not compiled for a GPU: a header
// like that of nvcc's fatbins, and the package's name.
func Image(name string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, fatbinMagic)
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = binary.LittleEndian.AppendUint16(b, fatbinHeaderBytes)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(name)))
	return append(b, name...)
}

// imageName returns the name under which the double looks for an image's
// kernels. Bytes behind a fatbin's own length do not count.
func imageName(image []byte) (string, error) {
	if name, ok := strings.CutPrefix(string(image), textMagic); ok {
		name, _, ok = strings.Cut(name, "\n")
		if !ok || name == "" || strings.ContainsAny(name, "/\x00") {
			return "", fmt.Errorf("image %.40q: want %s, a name and a line feed", image, textMagic)
		}
		return name, nil
	}
	if len(image) < fatbinHeaderBytes || binary.LittleEndian.Uint32(image) != fatbinMagic {
		return "", fmt.Errorf("image of %d bytes is no fatbin: generate the package with CUDA, or use double.Image", len(image))
	}
	bytes := uint64(binary.LittleEndian.Uint16(image[6:])) + binary.LittleEndian.Uint64(image[8:])
	if bytes < fatbinHeaderBytes || bytes > uint64(len(image)) {
		return "", fmt.Errorf("image of %d bytes says that it has %d", len(image), bytes)
	}
	hash := fnv.New64a()
	_, _ = hash.Write(image[:bytes]) // it never fails
	return fmt.Sprintf("%016x", hash.Sum64()), nil
}
