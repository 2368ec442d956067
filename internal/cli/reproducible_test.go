package cli

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// thirtyParams is a spec with ties, repeats, several dtypes and overrides; the
// keys of its parameters stand in one of two orders.
func thirtyParams(reordered bool) string {
	param := "{name: %q, shape: [%d, 3], dtype: %s}"
	if reordered {
		param = "{dtype: %[3]s, shape: [%[2]d, 3], name: %[1]q}"
	}
	var b strings.Builder
	b.WriteString("apiVersion: shardgen/v1alpha1\nmodel: thirty\ntopology: {world: [1, 3, 8]}\noptimizer: {kind: adamw}\nblocks:\n")
	dtypes := []string{"f32", "bf16", "f16"}
	for block := range 5 {
		fmt.Fprintf(&b, "  - name: \"b%d.{i}\"\n    repeat: {i: %d}\n    params:\n", block, block+2)
		for i := range 6 {
			fmt.Fprintf(&b, "      - "+param+"\n", fmt.Sprintf("b%d.{i}.p%d.weight", block, i), i+block, dtypes[(i+block)%3])
		}
	}
	b.WriteString("  - name: head\n    params: [{name: e, shape: [7]}, {name: t, tied_to: e}]\n")
	b.WriteString("overrides:\n  - {match: \"*.p1.*\", trainable: false}\n  - {match: \"b2*\", decay: false}\n")
	return b.String()
}

// generated runs the binary in a folder and returns a hash of the plan and all
// files that it wrote, with their names.
func generated(t *testing.T, binary, folder, spec, env string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	hash := sha256.New()
	for _, args := range [][]string{{"generate", spec, "--out", out}, {"plan", spec, "--rank", "2", "--world", "3", "--format", "json"}} {
		command := exec.Command(binary, args...)
		command.Dir, command.Env, command.Stderr = folder, append(os.Environ(), env), os.Stderr
		text, err := command.Output()
		if err != nil {
			t.Fatal(err)
		}
		hash.Write(text)
	}
	entries, err := os.ReadDir(out)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d files, error %v", len(entries), err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(out, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(hash, "%s %d\n%s", e.Name(), len(text), text)
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

func TestOutputDoesNotDependOnRunFolderOrThreads(t *testing.T) {
	binary := buildShardgen(t)
	useFakeNVCC(t)
	first := ""
	for n := range 12 {
		folder := filepath.Join(t.TempDir(), fmt.Sprintf("folder %d", n%2))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, "model.yaml")
		if err := os.WriteFile(path, []byte(thirtyParams(n >= 8)), 0o644); err != nil {
			t.Fatal(err)
		}
		if n%4 < 2 {
			path = "model.yaml"
		}
		got := generated(t, binary, folder, path, fmt.Sprintf("GOMAXPROCS=%d", 1+n/2%2))
		if first == "" {
			first = got
		}
		if got != first {
			t.Errorf("run %d in %s: hash %s, the first run's is %s", n, folder, got, first)
		}
	}
}
