package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/spec"
)

const generatedNote = "<!-- Generated: go test ./internal/docstest -update. -->\n\n"

// diagnostics returns the page that explains every code.
func diagnostics(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(generatedNote + "# Diagnostics\n\n" +
		"A fault is printed as `file:line:col: error: message [code]`, with the line and a caret under the place.\n" +
		"`shardgen explain CODE` prints what stands here, and `--json` prints faults as JSON.\n")
	for _, code := range spec.Codes() {
		text, ok := spec.Explain(code)
		rest, isFirst := strings.CutPrefix(text, code+"\n\n")
		if !ok || !isFirst {
			t.Fatalf("no explanation of %s", code)
		}
		out.WriteString("\n## " + code + "\n\n" + rest)
	}
	return out.String()
}

func TestGeneratedPagesAreUpToDate(t *testing.T) {
	for name, want := range map[string]string{
		"diagnostics.md":    diagnostics(t),
		"spec-reference.md": generatedNote + string(spec.Reference()),
	} {
		path := filepath.Join(root(t), "docs", name)
		if *update {
			write(t, path, want)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("docs/%s is not what the parser says, error %v: run go test ./internal/docstest -update", name, err)
		}
	}
}

var nameRow = regexp.MustCompile("(?m)^\\| `(.+)` \\| `(.+)` \\| `(.+)` \\| `(.+)` \\|$")

// TestTableOfNamesIsTheRule holds the examples of names.md against the rule.
func TestTableOfNamesIsTheRule(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "names.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := nameRow.FindAllStringSubmatch(string(text), -1)
	if len(rows) < 8 {
		t.Fatalf("names.md has a table of %d rows", len(rows))
	}
	for _, row := range rows {
		block, param := row[1], row[2]
		if kind, field := plan.KindName(block), plan.FieldName(block, param); kind != row[3] || field != row[4] {
			t.Errorf("%s in %s is %s.%s, the page says %s.%s", param, block, kind, field, row[3], row[4])
		}
	}
}
