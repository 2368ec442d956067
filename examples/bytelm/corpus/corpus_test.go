package corpus

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeTree makes a directory of files, each holding its own path and a newline.
func writeTree(t *testing.T, paths ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range paths {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(path+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// numbered returns n paths that sort after "a".
func numbered(n int) []string {
	var paths []string
	for i := range n {
		paths = append(paths, fmt.Sprintf("p/f%02d.go", i))
	}
	return paths
}

func TestSourcesAreReadInOrderAndEveryTwentiethFileIsHeldOut(t *testing.T) {
	paths := append(numbered(21), "a/one.go", "a/one_test.go", "a/data.txt", "a/testdata/x.go",
		"cmd/tool.go", "vendor/v.go", "p/cmd/kept.go")
	c, err := FromDir(writeTree(t, paths...), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var train []string
	train = append(train, "a/one.go", "p/cmd/kept.go")
	train = append(train, numbered(21)[:17]...)
	train = append(train, numbered(21)[18:]...)
	if want := strings.Join(train, "\n") + "\n"; string(c.Train) != want {
		t.Errorf("training text\n%swant\n%s", c.Train, want)
	}
	if want := "p/f17.go\n"; string(c.HeldOut) != want {
		t.Errorf("held-out text %q, want %q", c.HeldOut, want)
	}
}

func TestReadingStopsAtTheLimit(t *testing.T) {
	c, err := FromDir(writeTree(t, numbered(30)...), 20*9+3)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(c.Train) + len(c.HeldOut); got != 20*9+3 {
		t.Errorf("read %d bytes, want %d", got, 20*9+3)
	}
}

func TestWhatCannotBeReadIsSaid(t *testing.T) {
	for _, test := range []struct {
		name  string
		dir   string
		limit int64
		want  string
	}{
		{"no such directory", filepath.Join(t.TempDir(), "none"), 1, "no such file"},
		{"too few files", writeTree(t, "a/one.go"), 1 << 20, "holds 1 Go source files"},
		{"no bytes asked for", t.TempDir(), 0, "maxBytes is 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := FromDir(test.dir, test.limit)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestAMachineWithoutGoIsToldWhatToSet(t *testing.T) {
	t.Setenv("GOROOT", "")
	t.Setenv("PATH", t.TempDir())
	_, err := Load(context.Background(), 1<<20)
	if err == nil || !strings.Contains(err.Error(), "set GOROOT or put go on the PATH") {
		t.Errorf("error %v, want one that says what to set", err)
	}
}

func TestTheGoDistributionIsFoundAndRead(t *testing.T) {
	c, err := Load(context.Background(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(c.Train) + len(c.HeldOut); got != 1<<20 {
		t.Errorf("read %d bytes, want %d", got, 1<<20)
	}
	if !bytes.Contains(c.Train, []byte("package archive")) && !bytes.Contains(c.Train, []byte("package tar")) {
		t.Error("the text does not look like the standard library's sources")
	}
}

// counting is text whose bytes tell their place.
func counting(n int) []byte {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte(i)
	}
	return text
}

type batch struct{ tokens, targets []byte }

func draw(t *testing.T, c *Corpus, seed uint64, step, micro int) batch {
	t.Helper()
	b := batch{make([]byte, 40), make([]byte, 40)}
	if err := c.Batch(seed, step, micro, 10, b.tokens, b.targets); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestABatchDependsOnSeedStepAndMicroBatchAlone(t *testing.T) {
	c := &Corpus{Train: counting(200)}
	first := draw(t, c, 1, 2, 3)
	draw(t, c, 9, 9, 9)
	if again := draw(t, c, 1, 2, 3); !bytes.Equal(first.tokens, again.tokens) {
		t.Error("the same batch, asked for twice, differs")
	}
	for _, other := range []batch{draw(t, c, 2, 2, 3), draw(t, c, 1, 3, 3), draw(t, c, 1, 2, 4)} {
		if bytes.Equal(first.tokens, other.tokens) {
			t.Error("another seed, step or micro-batch gave the same batch")
		}
	}
}

func TestTargetsAreTheNextBytesAndEveryPlaceIsDrawn(t *testing.T) {
	c := &Corpus{Train: counting(20)}
	seen := map[byte]bool{}
	for step := range 100 {
		b := draw(t, c, 1, step, 0)
		for i, token := range b.tokens {
			if b.targets[i] != token+1 || token != b.tokens[i/10*10]+byte(i%10) {
				t.Fatalf("token %d, target %d at row %d", token, b.targets[i], i)
			}
		}
		seen[b.tokens[0]] = true
	}
	if len(seen) != 10 { // a sequence and its last target fit at 0..9
		t.Errorf("sequences began at %d places, want 10", len(seen))
	}
}

func TestHeldOutBatchesCoverTheHeldOutText(t *testing.T) {
	c := &Corpus{HeldOut: counting(110)}
	tokens, targets := make([]byte, 20), make([]byte, 20)
	var starts []byte
	for index := range 5 {
		if err := c.HeldOutBatch(index, 5, 10, tokens, targets); err != nil {
			t.Fatal(err)
		}
		starts = append(starts, tokens[0], tokens[10])
		if targets[9] != tokens[9]+1 {
			t.Errorf("batch %d: target %d after %d", index, targets[9], tokens[9])
		}
	}
	if want := []byte{0, 10, 20, 30, 40, 50, 60, 70, 80, 90}; !bytes.Equal(starts, want) {
		t.Errorf("sequences begin at %v, want %v", starts, want)
	}
	if err := c.HeldOutBatch(5, 5, 10, tokens, targets); err == nil {
		t.Error("batch 5 of 5 was given out")
	}
}

func TestBatchesThatDoNotFitAreRefused(t *testing.T) {
	for _, test := range []struct {
		name                        string
		text, context, toks, target int
		want                        string
	}{
		{"part of a sequence", 100, 10, 15, 15, "not a number of sequences"},
		{"no context", 100, 0, 10, 10, "not a number of sequences"},
		{"fewer targets", 100, 10, 20, 10, "20 tokens but 10 targets"},
		{"short text", 10, 10, 10, 10, "too short"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &Corpus{Train: counting(test.text)}
			err := c.Batch(1, 0, 0, test.context, make([]byte, test.toks), make([]byte, test.target))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}
