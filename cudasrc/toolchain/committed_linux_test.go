package toolchain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/cuemit"
	generated "github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

// matches returns the files of the repository that have one of the patterns.
func matches(t *testing.T, patterns ...string) []string {
	t.Helper()
	var all []string
	for _, p := range patterns {
		paths, err := filepath.Glob("../../" + p)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%d files are %s, %v", len(paths), p, err)
		}
		all = append(all, paths...)
	}
	return all
}

// The committed packages' own fatbins have the kernels that their specs need, of
// which the table has all.
func TestEveryCommittedFatbinHoldsToTheRules(t *testing.T) {
	c := compiler(t)
	specs := map[string]string{} // by the first line of what is generated from them
	for _, path := range matches(t, "spec/models/*.yaml", "spec/samples/*.yaml", "bench/*.yaml", "examples/bytelm/model.yaml") {
		specs[generated.Header(filepath.Base(path))] = path
	}
	known := string(read(t, table))
	for _, path := range matches(t, "generated/*/"+fatbin.FileName, "examples/bytelm/bytelm/"+fatbin.FileName) {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) { checkCommitted(t, c, path, specs, known) })
	}
}

func checkCommitted(t *testing.T, c *Compiler, path string, specs map[string]string, known string) {
	image, _, err := fatbin.Open(string(read(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kernels.fatbin")
	if err := os.WriteFile(file, []byte(image), 0o644); err != nil {
		t.Fatal(err)
	}
	header, _, _ := strings.Cut(string(read(t, filepath.Join(filepath.Dir(path), cuemit.KernelsFile))), "\n")
	for _, row := range rows(t, c, file, names(planOf(t, specs[header], asIs))) {
		if !strings.Contains(known, "\n"+row) {
			t.Errorf("%s has, unlike %s,\n%srun `make generate`", path, table, row)
		}
	}
}
