package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	letters = regexp.MustCompile(`[^a-z0-9 _-]`)
)

func TestLinksLeadSomewhere(t *testing.T) {
	for _, p := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(prose(p), -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			file := filepath.Join(root(t), p.path)
			if target != "" {
				file = filepath.Join(filepath.Dir(file), filepath.FromSlash(target))
			}
			text, err := os.ReadFile(file)
			if info, statErr := os.Stat(file); statErr == nil && info.IsDir() && anchor == "" {
				continue
			}
			if err != nil {
				t.Errorf("%s: link to %s: %v", p.path, found[1], err)
			} else if anchor != "" && !slices.Contains(anchors(string(text)), anchor) {
				t.Errorf("%s: link to %s: no such heading", p.path, found[1])
			}
		}
	}
}

// TestEveryPageIsInTheIndex keeps docs/README.md complete.
func TestEveryPageIsInTheIndex(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(root(t), "docs", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		name, inDocs := strings.CutPrefix(p.path, "docs/")
		if inDocs && name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md has no link to %s", name)
		}
	}
}

// prose returns a page without its fenced blocks.
func prose(p *page) string {
	lines := strings.Split(p.text, "\n")
	for _, b := range slices.Backward(p.blocks) {
		lines = slices.Delete(lines, b.line-1, b.line+strings.Count(b.body, "\n")+1)
	}
	return strings.Join(lines, "\n")
}

// anchors returns the headings of a page as links name them.
func anchors(text string) []string {
	var all []string
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		name := letters.ReplaceAllString(strings.ToLower(found[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}
