// Package corpus turns the sources of the Go distribution into batches of bytes.
//
// It takes the root of a Go installation, found where the machine has Go at all,
// and gives the same batches for the same (seed, step, micro-batch) on every
// rank, without any state between calls. It imports the standard library only.
package corpus

import (
	"context"
	"fmt"
	"io/fs"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// heldOutEvery says which files are not trained on: every so many-th.
const heldOutEvery = 20

// Corpus is text to train on and text to measure the loss on.
type Corpus struct {
	Train   []byte
	HeldOut []byte
}

// Load reads the Go standard library's sources, files in sorted order, until it
// has maxBytes of them. Tests, test data, vendored packages, the commands and
// big files (tables of numbers) are left out.
func Load(ctx context.Context, maxBytes int64) (*Corpus, error) {
	root, err := goRoot(ctx)
	if err != nil {
		return nil, err
	}
	return FromDir(filepath.Join(root, "src"), maxBytes)
}

// FromDir reads Go sources below a directory as Load does.
func FromDir(dir string, maxBytes int64) (*Corpus, error) {
	if maxBytes < 1 {
		return nil, fmt.Errorf("corpus: maxBytes is %d, must be at least 1", maxBytes)
	}
	r := reader{root: dir, left: maxBytes}
	if err := filepath.WalkDir(dir, r.visit); err != nil {
		return nil, fmt.Errorf("corpus: reading Go sources below %s: %w", dir, err)
	}
	if len(r.corpus.Train) == 0 || len(r.corpus.HeldOut) == 0 {
		return nil, fmt.Errorf("corpus: %s holds %d Go source files, want at least %d; is the Go distribution complete?",
			dir, r.files, heldOutEvery)
	}
	return &r.corpus, nil
}

// goRoot finds the Go distribution. A binary built with -trimpath does not know
// where it is, then the go command does.
func goRoot(ctx context.Context) (string, error) {
	if root := os.Getenv("GOROOT"); root != "" {
		return root, nil
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if root := strings.TrimSpace(string(out)); err == nil && root != "" {
		return root, nil
	}
	return "", fmt.Errorf("corpus: no Go distribution found to read text from: set GOROOT or put go on the PATH (go env GOROOT: %w)", err)
}

// reader collects files until it has enough bytes.
type reader struct {
	root   string
	left   int64
	files  int
	corpus Corpus
}

// maxFileBytes leaves out generated tables.
const maxFileBytes = 200 << 10

func (r *reader) visit(path string, entry fs.DirEntry, err error) error {
	switch {
	case err != nil:
		return err
	case entry.IsDir():
		return r.enter(path, entry.Name())
	case !entry.Type().IsRegular() || !wanted(entry.Name()):
		return nil
	}
	return r.read(path, entry)
}

// enter decides whether a directory is read.
func (r *reader) enter(path, name string) error {
	if name == "testdata" || name == "vendor" || path == filepath.Join(r.root, "cmd") {
		return fs.SkipDir
	}
	return nil
}

func wanted(name string) bool {
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

// read adds one file to the text for training or, every so often, to the other.
func (r *reader) read(path string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil || info.Size() > maxFileBytes {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text = text[:min(int64(len(text)), r.left)]
	r.files++
	if r.files%heldOutEvery == 0 {
		r.corpus.HeldOut = append(r.corpus.HeldOut, text...)
	} else {
		r.corpus.Train = append(r.corpus.Train, text...)
	}
	if r.left -= int64(len(text)); r.left == 0 {
		return fs.SkipAll
	}
	return nil
}

// Batch fills tokens and targets with sequences of the training text, each
// `context` bytes from a place that depends on (seed, step, micro) alone.
// targets holds the byte after each token.
func (c *Corpus) Batch(seed uint64, step, micro int, context int, tokens, targets []byte) error {
	if err := check(c.Train, context, tokens, targets); err != nil {
		return err
	}
	var random rand.PCG
	random.Seed(seed, uint64(step)<<32|uint64(uint32(micro)))
	places := uint64(len(c.Train) - context)
	for first := 0; first < len(tokens); first += context {
		at, _ := bits.Mul64(random.Uint64(), places) // uniform in [0, places)
		fill(c.Train[at:], tokens[first:first+context], targets[first:first+context])
	}
	return nil
}

// HeldOutBatch fills tokens and targets with sequences that are not trained on.
// They are spread evenly over the held-out text; batch index of count batches.
func (c *Corpus) HeldOutBatch(index, count int, context int, tokens, targets []byte) error {
	if err := check(c.HeldOut, context, tokens, targets); err != nil {
		return err
	}
	if index < 0 || index >= count {
		return fmt.Errorf("corpus: held-out batch %d of %d does not exist", index, count)
	}
	sequences := len(tokens) / context
	places := int64(len(c.HeldOut) - context)
	for i := range sequences {
		at := places * int64(index*sequences+i) / int64(count*sequences)
		first := i * context
		fill(c.HeldOut[at:], tokens[first:first+context], targets[first:first+context])
	}
	return nil
}

func check(text []byte, context int, tokens, targets []byte) error {
	switch {
	case context < 1 || len(tokens)%context != 0:
		return fmt.Errorf("corpus: a batch of %d tokens is not a number of sequences of %d", len(tokens), context)
	case len(tokens) != len(targets):
		return fmt.Errorf("corpus: %d tokens but %d targets", len(tokens), len(targets))
	case len(text) <= context:
		return fmt.Errorf("corpus: text of %d bytes is too short for sequences of %d; load more", len(text), context)
	}
	return nil
}

func fill(text, tokens, targets []byte) {
	copy(tokens, text)
	copy(targets, text[1:])
}
