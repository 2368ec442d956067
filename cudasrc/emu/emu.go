// Package emu runs CUDA kernels on the CPU, for tests: g++ compiles the same .cu
// that nvcc does, with a fiber in the place of each CUDA thread, into a program
// that this package feeds with launches.
//
// It takes the text of a .cu and gives a [Program], of which a [Process] does
// launches one after another on copies of the buffers it is given. A barrier
// that not all threads meet, an access outside a buffer (in a program built with
// sanitizers) and a wrong argument end the process with an error that says
// where. What holds here holds for a kernel's logic, not for a GPU.
//
// It imports cudasrc and the standard library, and needs g++ on x86-64.
package emu

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/shardgen/shardgen/cudasrc"
)

//go:embed emulator.h
var emulatorHeader []byte

//go:embed driver.h
var driverHeader []byte

// compiler is the C++ compiler.
const compiler = "g++"

// Available says why programs can't be built here, nil where they can.
func Available() error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("the emulator runs on linux/amd64, this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return fmt.Errorf("the emulator needs %s: %w", compiler, err)
	}
	return nil
}

// Options says how a program is built.
type Options struct {
	Sanitize bool              // with address and undefined-behaviour sanitizers
	Files    map[string]string // that the .cu includes besides cudasrc's headers, by name
	System   []string          // folders of headers that are not ours, such as CUDA's
}

// Program is a compiled .cu.
type Program struct{ path string }

var entryForm = regexp.MustCompile(`(?m)^extern "C" __global__ .*?(\w+)\(`)

// Entries returns the names of the kernels of a .cu, in its order. They are at
// the start of their lines: `extern "C" __global__ void name(`, with launch
// bounds or without.
func Entries(source string) []string {
	var names []string
	for line := range strings.Lines(source) {
		line = launchBounds.ReplaceAllString(line, "")
		if m := entryForm.FindStringSubmatch(line); m != nil {
			names = append(names, m[1])
		}
	}
	return names
}

var launchBounds = regexp.MustCompile(`__launch_bounds__\([^)]*\)`)

// Build compiles a .cu into an existing empty directory.
func Build(ctx context.Context, directory, source string, o Options) (*Program, error) {
	if err := write(directory, source, o); err != nil {
		return nil, fmt.Errorf("emulator: %w", err)
	}
	p := &Program{path: filepath.Join(directory, "program")}
	out, err := exec.CommandContext(ctx, compiler, arguments(directory, p.path, o)...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("emulator: %s: %w\n%.2000s", compiler, err, out)
	}
	return p, nil
}

// Check compiles a .cu into nothing, in an existing empty directory, and returns
// all that the compiler says; err is nil where it has no errors.
func Check(ctx context.Context, directory, source string, o Options) (messages string, err error) {
	if err := write(directory, source, o); err != nil {
		return "", fmt.Errorf("emulator: %w", err)
	}
	list := append(arguments(directory, os.DevNull, o), "-fsyntax-only", "-fmax-errors=0")
	out, err := exec.CommandContext(ctx, compiler, list...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("emulator: %s: %w", compiler, err)
	}
	return string(out), err
}

// arguments are those of g++. Products are not fused with sums, as nvcc is told
// too, and unknown pragmas are nvcc's.
func arguments(directory, program string, o Options) []string {
	list := []string{
		"-x", "c++", "-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing",
		"-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
		"-I", directory, filepath.Join(directory, "program.cc"), "-o", program,
	}
	for _, folder := range o.System {
		list = append(list, "-isystem", folder)
	}
	if !o.Sanitize {
		return append(list, "-O1")
	}
	return append(list, "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
}

// write makes the source tree of a program.
func write(directory, source string, o Options) error {
	if err := cudasrc.Write(directory); err != nil {
		return err
	}
	files := map[string]string{
		"emulator.h": string(emulatorHeader), "driver.h": string(driverHeader),
		"kernels.cu": source, "program.cc": program(Entries(source)),
	}
	for name, content := range o.Files {
		files[name] = content
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// program is the translation unit: the .cu between the emulator and its main.
func program(entries []string) string {
	var b bytes.Buffer
	b.WriteString("#include \"emulator.h\"\n#include \"kernels.cu\"\n#include \"driver.h\"\nconst std::vector<emu::Entry> emu::entries = {\n")
	for _, name := range entries {
		fmt.Fprintf(&b, "    EMU_ENTRY(%s),\n", name)
	}
	b.WriteString("};\n")
	return b.String()
}
