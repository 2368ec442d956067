package docstest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/spec"
)

func TestExcerptsOccurInTheirFiles(t *testing.T) {
	for _, p := range pages(t) {
		for i := range p.blocks {
			b := &p.blocks[i]
			if b.from() == "" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root(t), b.from()))
			if err != nil {
				t.Errorf("%s:%d: %v", p.path, b.line, err)
			} else if !matches(dots+"\n"+b.body+dots+"\n", string(text)) {
				t.Errorf("%s:%d: %s does not hold these lines in this order", p.path, b.line, b.from())
			}
		}
	}
}

func TestSpecsOfThePagesAreWhatThePagesSay(t *testing.T) {
	for _, p := range pages(t) {
		for i := range p.blocks {
			if b := &p.blocks[i]; b.language == "yaml" {
				checkSpec(t, p, b)
			}
		}
	}
}

func checkSpec(t *testing.T, p *page, b *block) {
	t.Helper()
	m, faults := spec.Parse(fmt.Sprintf("%s:%d", p.path, b.line), []byte(completed(b.body)))
	if len(faults) == 0 {
		_, faults = plan.Build(m)
	}
	if b.has("faulty") != (len(faults) > 0) {
		t.Errorf("%s:%d: expected faults: %v, found: %v", p.path, b.line, b.has("faulty"), faults.Err())
	}
}

// required are keys that a page may leave out of a spec. Overrides and ties of
// such a page find the parameters here.
var required = []struct{ key, value string }{
	{"apiVersion", "shardgen/v1alpha1"},
	{"model", "page"},
	{"topology", "{world: [1, 8]}"},
	{"blocks", "\n  - {name: embed, params: [{name: wte.weight, shape: [97, 16]}, {name: wpe.weight, shape: [12, 16]}]}" +
		"\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: \"h.{i}.ln_1.weight\", shape: [16]}, {name: \"h.{i}.mlp.weight\", shape: [16, 61]}]}"},
}

// completed adds the keys that every spec needs to a part of one. The added lines
// stand at the end, so that positions stay.
func completed(text string) string {
	for _, r := range required {
		if !regexp.MustCompile(`(?m)^` + r.key + `:`).MatchString(text) {
			text += r.key + ": " + r.value + "\n"
		}
	}
	return text
}

// imports are the packages that blocks of Go may use without saying so.
var imports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "math": "math", "time": "time", "slices": "slices",
	"shard": module + "/runtime", "optim": module + "/runtime/optim", "dtype": module + "/runtime/dtype",
	"comm": module + "/runtime/comm", "device": module + "/runtime/device", "cuda": module + "/runtime/device/cuda",
	"gpu": module + "/runtime/gpu", "tiny": module + "/generated/tiny",
}

var declaration = regexp.MustCompile(`^(//[^\n]*\n)*(func|type|var|const) `)

// goFile makes a file of a block of Go. The blocks of a page are one package.
func goFile(b *block) string {
	var file strings.Builder
	file.WriteString("package page\n\nimport (\n")
	for name, path := range imports {
		if regexp.MustCompile(`\b`+name+`\.`).MatchString(b.body) || name == "context" || name == "shard" || name == "tiny" {
			fmt.Fprintf(&file, "\t%s %q\n", name, path)
		}
	}
	file.WriteString(")\n\nvar _ func(context.Context, *shard.Rank, *tiny.Model)\n\n")
	if declaration.MatchString(b.body) {
		file.WriteString(b.body)
	} else {
		fmt.Fprintf(&file, "func statements%d(ctx context.Context, rank *shard.Rank, m *tiny.Model, steps int) error {\n%s\nreturn nil\n}\n", b.line, b.body)
	}
	return file.String()
}

func TestGoOfThePagesIsVetted(t *testing.T) {
	w := newWorkshop(t)
	folder := t.TempDir()
	names, err := os.ReadFile(filepath.Join("testdata", "context.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		inside := filepath.Join(folder, strings.NewReplacer("/", "_", ".md", "").Replace(p.path))
		for i := range p.blocks {
			if b := &p.blocks[i]; b.language == "go" && b.from() == "" && b.file() == "" {
				write(t, filepath.Join(inside, fmt.Sprintf("line%d.go", b.line)), goFile(b))
				write(t, filepath.Join(inside, "context.go"), string(names))
			}
		}
	}
	w.silently(t, folder, "go mod init example.com/pages && go mod edit -require="+module+"@v0.0.0 && go get "+module+"/runtime/gpu && go vet -unreachable=false ./...")
}
