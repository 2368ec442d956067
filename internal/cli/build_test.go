package cli

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/shardgen/shardgen"

func goEnv(t testing.TB, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// built is the path of the binary as users build it.
var built = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildFolder, "shardgen")
	command := exec.Command("go", "build", "-o", path, module+"/cmd/shardgen")
	command.Env = append(command.Environ(), "CGO_ENABLED=0")
	out, err := command.CombinedOutput()
	if err != nil {
		return "", &buildError{string(out), err}
	}
	return path, nil
})

type buildError struct {
	output string
	err    error
}

func (e *buildError) Error() string { return e.err.Error() + "\n" + e.output }

func buildShardgen(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestImportsNoBackend(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/cmd/shardgen").Output()
	if err != nil {
		t.Fatal(err)
	}
	leaves := []string{"abi", "dtype", "fatbin", "kernel", "layout", "optim", "random"}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, module+"/internal/cli") {
		t.Fatalf("go list names %d packages, not the command's own", len(packages))
	}
	for _, p := range packages {
		inside, ok := strings.CutPrefix(p, module+"/runtime")
		if ok && !slices.Contains(leaves, strings.TrimPrefix(inside, "/")) {
			t.Errorf("%s is in the command: it may import the runtime's leaves %v only", p, leaves)
		}
		if strings.Contains(p, "purego") || p == "runtime/cgo" || p == "net" {
			t.Errorf("%s is in the command: it has to be a static binary without backends", p)
		}
	}
}
