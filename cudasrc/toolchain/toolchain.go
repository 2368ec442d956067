// Package toolchain compiles CUDA, with the pinned compilers that install.sh
// fetches or with those of the machine: a .cu to a fatbin for every target, and
// the fatbin back to what tests ask about it (targets, entries, registers, PTX).
//
// Flags are part of a package's output: the same source gives the same bytes in
// any folder with the pinned versions. It imports the standard library only.
package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Architectures that a fatbin has machine code for; newer GPUs compile the PTX of
// [Virtual].
var Architectures = []string{"sm_80", "sm_90", "sm_100"}

// Virtual is the architecture of the PTX.
const Virtual = "compute_90"

// ErrMissing says that the compilers are not there.
var ErrMissing = errors.New("no CUDA compilers")

// flags are those of nvcc. Products are not fused with sums, so that the bits are
// the CPU's; warnings and spilled registers are errors. What a fatbin records of
// them, the -Xptxas, is one set for all.
var flags = []string{
	"-std=c++17", "-O3", "--fmad=false", "-fatbin", "--threads", "2",
	"-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", "-Xptxas", "-warn-spills,-Werror",
}

// Compiler is an installed toolchain.
type Compiler struct{ nvcc, cuobjdump string }

// Find returns the compilers that install.sh put into a folder. The error is
// [ErrMissing] where there are none.
func Find(folder string) (*Compiler, error) {
	bin := filepath.Join(folder, "nvidia", "cu13", "bin")
	c := At(filepath.Join(bin, "nvcc"))
	if _, err := os.Stat(filepath.Join(folder, "installed.sha256")); err != nil {
		return nil, fmt.Errorf("%w in %s (%v); run `make cuda-toolchain`", ErrMissing, folder, err)
	}
	return c, nil
}

// Fatbin compiles a .cu for all targets. include are the folders of its headers.
// The error holds what the compiler says.
func (c *Compiler) Fatbin(ctx context.Context, source, fatbin string, include ...string) error {
	arguments := slices.Clone(flags)
	for _, arch := range Architectures {
		arguments = append(arguments, "-gencode", "arch="+strings.Replace(arch, "sm_", "compute_", 1)+",code="+arch)
	}
	arguments = append(arguments, "-gencode", "arch="+Virtual+",code="+Virtual)
	for _, folder := range include {
		arguments = append(arguments, "-I", folder)
	}
	out, err := output(exec.CommandContext(ctx, c.nvcc, append(arguments, source, "-o", fatbin)...))
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%.4000s", c.nvcc, filepath.Base(source), err, out)
	}
	return nil
}

// Targets lists what a fatbin holds: "sm_90" for machine code, "compute_90" for
// PTX, sorted.
func (c *Compiler) Targets(ctx context.Context, fatbin string) ([]string, error) {
	out, err := c.dump(ctx, "-lelf", "-lptx", fatbin)
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, m := range targetForm.FindAllStringSubmatch(out, -1) {
		if m[2] == "ptx" {
			m[1] = strings.Replace(m[1], "sm_", "compute_", 1)
		}
		targets = append(targets, m[1])
	}
	slices.Sort(targets)
	return targets, nil
}

var targetForm = regexp.MustCompile(`(sm_\d+)\.(cubin|ptx)`)

// PTX returns the PTX of a fatbin.
func (c *Compiler) PTX(ctx context.Context, fatbin string) (string, error) {
	return c.dump(ctx, "-ptx", fatbin)
}

// Usage is what an entry takes of a multiprocessor.
type Usage struct {
	Registers  int64 // of a thread
	StackBytes int64 // of a thread, for what is not in registers
}

// Usage returns the entries of one architecture's machine code.
func (c *Compiler) Usage(ctx context.Context, fatbin, architecture string) (map[string]Usage, error) {
	out, err := c.dump(ctx, "-res-usage", "-arch", architecture, fatbin)
	if err != nil {
		return nil, err
	}
	entries := map[string]Usage{}
	for _, m := range usageForm.FindAllStringSubmatch(out, -1) {
		registers, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("cuobjdump: registers of %s: %w", m[1], err)
		}
		stack, err := strconv.ParseInt(m[3], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("cuobjdump: stack of %s: %w", m[1], err)
		}
		entries[m[1]] = Usage{registers, stack}
	}
	return entries, nil
}

var usageForm = regexp.MustCompile(`Function (\w+):\s+REG:(\d+) STACK:(\d+)`)

func (c *Compiler) dump(ctx context.Context, arguments ...string) (string, error) {
	out, err := output(exec.CommandContext(ctx, c.cuobjdump, arguments...))
	if err != nil {
		return "", fmt.Errorf("cuobjdump: %w\n%.2000s", err, out)
	}
	return out, nil
}

// output runs a command and returns what it prints. Where its context ends, the
// programs that it started in turn are not waited for.
func output(command *exec.Cmd) (string, error) {
	command.WaitDelay = time.Second
	var words limited
	command.Stdout, command.Stderr = &words, &words
	err := command.Run()
	return words.String(), err
}

// limited keeps the beginning of what is written to it.
type limited struct{ bytes.Buffer }

// Write implements io.Writer; what is too much is taken and forgotten.
func (l *limited) Write(b []byte) (int, error) {
	const mostBytes = 64 << 20 // the PTX of all kernels is below that
	room := max(0, mostBytes-l.Len())
	_, err := l.Buffer.Write(b[:min(len(b), room)])
	return len(b), err
}
