package cuemit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/spec"
)

// planOf plans a spec in YAML.
func planOf(t *testing.T, path, yaml string) *plan.Plan {
	t.Helper()
	m, faults := spec.Parse(path, []byte(yaml))
	if m == nil {
		t.Fatalf("spec: %v", faults)
	}
	p, faults := plan.Build(m)
	if p == nil {
		t.Fatalf("plan: %v", faults)
	}
	return p
}

// planFile plans a spec of the repository, "samples/tiny.yaml".
func planFile(t *testing.T, name string) *plan.Plan {
	t.Helper()
	path := filepath.Join("../../spec", name)
	yaml, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return planOf(t, path, string(yaml))
}

// files are specs whose packages are committed, and larger ones.
var files = []string{
	"samples/alldtypes.yaml", "samples/oddshapes.yaml", "samples/tied.yaml", "samples/tiny.yaml",
	"models/gpt2.yaml", "models/llama-3-8b.yaml", "models/llama-3.1-405b.yaml", "models/t5-small.yaml",
}

func emit(t *testing.T, p *plan.Plan) []output.File {
	t.Helper()
	files, err := Package(p)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func text(t *testing.T, files []output.File, name string) string {
	t.Helper()
	for _, f := range files {
		if f.Name == name {
			return string(f.Content)
		}
	}
	t.Fatalf("no file %s", name)
	return ""
}
