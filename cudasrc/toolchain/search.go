package toolchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// NVCCVariable is the environment variable that names the nvcc to use.
const NVCCVariable = "SHARDGEN_NVCC"

// DefaultNVCC is where NVIDIA's installers put nvcc.
const DefaultNVCC = "/usr/local/cuda/bin/nvcc"

// The oldest release that knows all [Architectures].
const oldestMajor, oldestMinor = 12, 8

// Search returns the nvcc of this machine: what $SHARDGEN_NVCC names, or the
// first of $CUDA_HOME/bin, the PATH and fallback. The error is [ErrMissing]
// where there is none, another where the variable names no program.
func Search(fallback string) (*Compiler, error) {
	if named := os.Getenv(NVCCVariable); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return nil, fmt.Errorf("%s names %s, which can't be run: correct or unset it: %w", NVCCVariable, named, err)
		}
		return At(path), nil
	}
	candidates := []string{"nvcc", fallback}
	if home := os.Getenv("CUDA_HOME"); home != "" {
		candidates = append([]string{filepath.Join(home, "bin", "nvcc")}, candidates...)
	}
	for _, candidate := range candidates {
		if path, err := exec.LookPath(candidate); err == nil {
			return At(path), nil
		}
	}
	return nil, fmt.Errorf("%w: no nvcc in $CUDA_HOME/bin, in the PATH, or at %s: install CUDA %d.%d or newer, or set %s to the path of nvcc",
		ErrMissing, fallback, oldestMajor, oldestMinor, NVCCVariable)
}

// At returns the compilers of the folder that an nvcc is in. nvcc looks for the
// rest of its toolkit beside itself, so links are followed.
func At(nvcc string) *Compiler {
	if target, err := filepath.EvalSymlinks(nvcc); err == nil {
		nvcc = target
	}
	return &Compiler{nvcc: nvcc, cuobjdump: filepath.Join(filepath.Dir(nvcc), "cuobjdump")}
}

// NVCC returns the path of nvcc.
func (c *Compiler) NVCC() string { return c.nvcc }

var releaseForm = regexp.MustCompile(`\brelease (\d+)\.(\d+)\b`)

// CheckRelease refuses an nvcc that does not know all [Architectures].
func (c *Compiler) CheckRelease(ctx context.Context) error {
	out, err := output(exec.CommandContext(ctx, c.nvcc, "--version"))
	if err != nil {
		return fmt.Errorf("%s --version: %w\n%.2000s", c.nvcc, err, out)
	}
	m := releaseForm.FindStringSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s --version names no release, expected an nvcc of CUDA %d.%d or newer; it prints %.500q", c.nvcc, oldestMajor, oldestMinor, out)
	}
	major, majorErr := strconv.Atoi(m[1])
	minor, minorErr := strconv.Atoi(m[2])
	if err := errors.Join(majorErr, minorErr); err != nil {
		return fmt.Errorf("%s --version: %w", c.nvcc, err)
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("%s is of CUDA %d.%d, which can't compile for %s: install CUDA %d.%d or newer, or set %s to the path of a newer nvcc",
			c.nvcc, major, minor, Architectures[len(Architectures)-1], oldestMajor, oldestMinor, NVCCVariable)
	}
	return nil
}
