// Package idle has a driver of NVIDIA's and an NCCL that agree to everything and
// do nothing: what the runtime costs by itself is measured over them.
//
// It takes a folder and gives the compiled [Libraries]. It is for tests and
// benchmarks, needs gcc on linux/amd64 and imports the standard library.
package idle

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

//go:embed *.c
var sources embed.FS

const compiler = "gcc"

// Libraries are the paths of the compiled libraries.
type Libraries struct {
	CUDA string // libcuda.so.1
	NCCL string // libnccl.so.2
}

// Available says why they can't be built here, nil where they can.
func Available() error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("the libraries that do nothing are for linux/amd64, this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return fmt.Errorf("the libraries that do nothing need %s: %w", compiler, err)
	}
	return nil
}

// Build compiles both into an existing folder.
func Build(ctx context.Context, dir string) (Libraries, error) {
	l := Libraries{CUDA: filepath.Join(dir, "libcuda.so.1"), NCCL: filepath.Join(dir, "libnccl.so.2")}
	return l, errors.Join(compile(ctx, "libcuda.c", l.CUDA), compile(ctx, "libnccl.c", l.NCCL))
}

func compile(ctx context.Context, name, target string) error {
	text, err := sources.ReadFile(name)
	if err != nil {
		return err
	}
	source := filepath.Join(filepath.Dir(target), name)
	if err := os.WriteFile(source, text, 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, compiler, "-shared", "-fPIC", "-O2", "-Wl,-soname,"+filepath.Base(target), "-o", target, source).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	return nil
}
