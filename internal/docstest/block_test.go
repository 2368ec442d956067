package docstest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a page.
type block struct {
	language   string
	words      []string // what follows the language
	line       int      // of the opening fence, from 1
	body       string
	afterShell bool // it follows an sh block, with blank lines between at most
}

// from returns the file that the block is an excerpt of.
func (b *block) from() string { return b.value("from") }

// needs returns the program that the block can't be run without.
func (b *block) needs() string { return b.value("needs") }

// value returns what follows name= among the block's words.
func (b *block) value(name string) string {
	for _, w := range b.words {
		if value, found := strings.CutPrefix(w, name+"="); found {
			return value
		}
	}
	return ""
}

// file returns the name under which the block is put into the page's folder.
func (b *block) file() string {
	if len(b.words) == 0 || b.from() != "" || !strings.Contains(b.words[0], ".") {
		return ""
	}
	return b.words[0]
}

func (b *block) has(word string) bool { return slices.Contains(b.words, word) }

func (b *block) isOutput() bool {
	return b.afterShell && (b.language == "text" || b.language == "json" || b.language == "diff")
}

// page is a markdown file of the repository.
type page struct {
	path   string // from the root, with slashes
	text   string
	blocks []block
}

// root is the folder of the repository.
func root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// pages reads all pages.
func pages(t *testing.T) []*page {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root(t), "docs", "*.md"))
	if err != nil || len(paths) < 2 {
		t.Fatalf("%d pages in docs, error %v", len(paths), err)
	}
	var all []*page
	for _, path := range append(paths, filepath.Join(root(t), "README.md")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(root(t), path)
		if err != nil {
			t.Fatal(err)
		}
		p := &page{path: filepath.ToSlash(name), text: string(text)}
		if p.blocks, err = parseBlocks(p.text); err != nil {
			t.Fatalf("%s: %v", p.path, err)
		}
		all = append(all, p)
	}
	return all
}

const fence = "```"

// parseBlocks finds the fenced blocks of a page. Fences stand at the start of a
// line.
func parseBlocks(text string) ([]block, error) {
	var blocks []block
	var body []string
	open := false
	previous := "" // language of the block that only blank lines separate from here
	for i, line := range strings.Split(text, "\n") {
		info, isFence := strings.CutPrefix(line, fence)
		switch {
		case isFence && !open:
			words := append(strings.Fields(info), "")
			blocks = append(blocks, block{language: words[0], words: words[1 : max(len(words), 2)-1], line: i + 1, afterShell: previous == "sh"})
			open, body = true, nil
		case isFence && info != "":
			return nil, fmt.Errorf("line %d: a fence inside a block", i+1)
		case isFence:
			last := &blocks[len(blocks)-1]
			last.body = strings.Join(append(body, ""), "\n")
			open, previous = false, last.language
		case open:
			body = append(body, line)
		case strings.TrimSpace(line) != "":
			previous = ""
		}
	}
	if open {
		return nil, fmt.Errorf("line %d: a block without an end", blocks[len(blocks)-1].line)
	}
	return blocks, nil
}
