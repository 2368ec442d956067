package docstest

import "testing"

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{"a\nb\n", "a\nb\n", true},
		{"a\n", "a\nb\n", false},
		{"b\n", "a\nb\n", false},
		{"a\n...\nc\n", "a\nb\nb\nc\n", true},
		{"a\n...\nc\n", "a\nc\n", true},
		{"a\n...\nc\n", "a\nb\n", false},
		{"a\n...\nc\n", "a\nc\nd\n", false},
		{"a\n...\nc\n", "a\nc\nb\nc\n", true},
		{"...\nc\n", "a\nc\n", true},
		{"...\nc\n", "ac\n", false},
		{"a\n...\n", "a\nb\n", true},
		{"b\n...\n", "a\nb\n", false},
	} {
		if got := matches(c.want, c.got); got != c.ok {
			t.Errorf("matches(%q, %q) = %v", c.want, c.got, got)
		}
	}
}

func TestParseBlocks(t *testing.T) {
	blocks, err := parseBlocks("a\n```sh fails\nx\n```\n\n```text\ny\nz\n```\nb\n```go from=a/b.go\n```\n")
	if err != nil || len(blocks) != 3 {
		t.Fatalf("%d blocks, error %v", len(blocks), err)
	}
	shell, text, code := &blocks[0], &blocks[1], &blocks[2]
	if shell.language != "sh" || !shell.has("fails") || shell.body != "x\n" || shell.line != 2 {
		t.Errorf("the first block is %+v", shell)
	}
	if !text.isOutput() || text.body != "y\nz\n" || len(text.words) != 0 {
		t.Errorf("the second block is %+v", text)
	}
	if code.isOutput() || code.from() != "a/b.go" || code.file() != "" || code.body != "" {
		t.Errorf("the third block is %+v", code)
	}
	for _, bad := range []string{"```sh\n", "```sh\n```go\n```\n"} {
		if _, err := parseBlocks(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
