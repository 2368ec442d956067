package docstest

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated pages and the outputs in all pages anew")

const module = "github.com/shardgen/shardgen"

// goProgram stands before the real go in the path. A module that a page starts
// gets this tree for shardgen's module, as no network is needed then.
const goProgram = `#!/bin/bash
set -euo pipefail
"$REAL_GO" "$@"
if [[ "${1:-} ${2:-}" == "mod init" ]]; then
	"$REAL_GO" mod edit -replace=` + module + `="$REPOSITORY"
	cp "$REPOSITORY/go.sum" go.sum
fi
`

// workshop is what the commands of all pages share.
type workshop struct {
	root    string
	environ []string
	targets []string // of the Makefile
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	w := &workshop{root: root(t)}
	programs := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(programs, "shardgen"), "./cmd/shardgen")
	build.Dir = w.root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(programs, "go"), []byte(goProgram), 0o755); err != nil {
		t.Fatal(err)
	}
	realGo, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	w.environ = []string{
		"PATH=" + programs + string(os.PathListSeparator) + os.Getenv("PATH"), "REAL_GO=" + realGo, "REPOSITORY=" + w.root,
		"GOCACHE=" + goVariable(t, "GOCACHE"), "GOMODCACHE=" + goVariable(t, "GOMODCACHE"),
		"GOPROXY=off", "GOFLAGS=", "GOWORK=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0", "LC_ALL=C", "HOME=/no-home",
	}
	makefile, err := os.ReadFile(filepath.Join(w.root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(string(makefile), -1) {
		w.targets = append(w.targets, found[1])
	}
	return w
}

func goVariable(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// folder makes a page's folder.
func (w *workshop) folder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, part := range []string{"models", "samples"} {
		if err := os.CopyFS(filepath.Join(folder, "spec", part), os.DirFS(filepath.Join(w.root, "spec", part))); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestCommandsOfThePagesDoWhatThePagesShow(t *testing.T) {
	w := newWorkshop(t)
	for _, p := range pages(t) {
		t.Run(p.path, func(t *testing.T) {
			t.Parallel()
			w.run(t, p)
		})
	}
}

// run plays a page from top to bottom.
func (w *workshop) run(t *testing.T, p *page) {
	folder := w.folder(t)
	shown := map[int]string{} // by line of the block
	printed, hasGo, left := "", false, false
	for i := range p.blocks {
		b := &p.blocks[i]
		switch {
		case b.language == "sh" && !available(t, p, b):
			left = true
		case b.language == "sh":
			printed, left = w.shell(t, p, b, folder), false
		case b.isOutput() && left:
		case b.isOutput():
			compareOutput(t, p, b, printed, shown)
		case b.file() != "":
			hasGo = hasGo || b.language == "go"
			write(t, filepath.Join(folder, b.file()), b.body)
		}
	}
	if hasGo {
		w.silently(t, folder, "go vet ./...")
	}
	if len(shown) > 0 && *update {
		write(t, filepath.Join(w.root, p.path), withOutputs(p, shown))
	}
}

// available reports whether the program is there that a block needs. In CI it
// has to be.
func available(t *testing.T, p *page, b *block) bool {
	t.Helper()
	if b.needs() == "" {
		return true
	}
	_, err := exec.LookPath(b.needs())
	if err != nil && os.Getenv("CI") == "true" {
		t.Errorf("%s:%d: %v", p.path, b.line, err)
	} else if err != nil {
		t.Logf("%s:%d is not run: %v", p.path, b.line, err)
	}
	return err == nil
}

// shell runs a block and returns what it prints.
func (w *workshop) shell(t *testing.T, p *page, b *block, folder string) string {
	t.Helper()
	var script []string
	for _, line := range strings.Split(b.body, "\n") {
		target, isMake := strings.CutPrefix(line, "make ")
		if !isMake {
			script = append(script, line)
			continue
		}
		target, _, _ = strings.Cut(target, " ")
		if !slices.Contains(w.targets, target) {
			t.Errorf("%s:%d: the Makefile has no target %q", p.path, b.line, target)
		}
	}
	out, err := w.bash(folder, strings.Join(script, "\n"))
	if (err != nil) != b.has("fails") {
		t.Fatalf("%s:%d: error %v, printed\n%s", p.path, b.line, err, out)
	}
	return out
}

// silently runs commands that no page shows.
func (w *workshop) silently(t *testing.T, folder, script string) {
	t.Helper()
	if out, err := w.bash(folder, script); err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
}

func (w *workshop) bash(folder, script string) (string, error) {
	command := exec.Command("bash", "-euo", "pipefail", "-c", script)
	command.Dir, command.Env = folder, w.environ
	out, err := command.CombinedOutput()
	return string(out), err
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// compareOutput holds an output block against what was printed. With -update it
// notes what to show instead, unless the block leaves lines out.
func compareOutput(t *testing.T, p *page, b *block, printed string, shown map[int]string) {
	t.Helper()
	printed = trimLines(printed)
	switch {
	case matches(trimLines(b.body), printed):
	case *update && !slices.Contains(strings.Split(b.body, "\n"), dots):
		shown[b.line] = printed
	default:
		t.Errorf("%s:%d: the page shows\n%s\nbut the commands print\n%s", p.path, b.line, b.body, printed)
	}
}

// dots stand for any lines, on a line of their own.
const dots = "..."

// matches compares texts of whole lines; dots in want stand for any lines.
func matches(want, got string) bool {
	parts := splitAtDots(want)
	rest, found := strings.CutPrefix(got, parts[0])
	if !found || len(parts) == 1 {
		return found && rest == ""
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		at := strings.Index("\n"+rest, "\n"+part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return strings.HasSuffix("\n"+rest, "\n"+parts[last])
}

// splitAtDots returns the parts between lines of dots, each of whole lines.
func splitAtDots(text string) []string {
	parts := []string{""}
	for _, line := range strings.SplitAfter(text, "\n") {
		if strings.TrimSpace(line) == dots {
			parts = append(parts, "")
			continue
		}
		parts[len(parts)-1] += line
	}
	return parts
}

// trimLines drops blanks at the end of each line, and of the text.
func trimLines(text string) string {
	lines := strings.Split(strings.TrimRight(text, " \n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// withOutputs puts outputs into a page in place of those it shows.
func withOutputs(p *page, shown map[int]string) string {
	lines := strings.SplitAfter(p.text, "\n")
	for i := len(p.blocks) - 1; i >= 0; i-- {
		b := &p.blocks[i]
		if text, found := shown[b.line]; found {
			lines = slices.Replace(lines, b.line, b.line+strings.Count(b.body, "\n"), text)
		}
	}
	return strings.Join(lines, "")
}
