package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shardgen/shardgen/spec"
)

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { panic("reader is broken") }

func TestPanicBecomesAnInternalError(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if status := Run([]string{"plan", "-"}, brokenReader{}, &stdout, &stderr); status != statusFailed {
		t.Errorf("status %d, expected %d", status, statusFailed)
	}
	text := stderr.String()
	if !strings.HasPrefix(text, "shardgen: internal error: reader is broken: this is a fault of shardgen") {
		t.Errorf("unexpected message:\n%s", text)
	}
	if !strings.Contains(text, "brokenReader") {
		t.Errorf("the message lacks the stack:\n%s", text)
	}
}

func TestReadErrorsNameTheFile(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: "a.yaml", Err: syscall.EACCES}
	const expected = `a.yaml may not be read by this user: allow it, for example with "chmod u+r"`
	if got := openError("a.yaml", denied).Error(); got != expected {
		t.Errorf("got %q, expected %q", got, expected)
	}
	exhausted := &fs.PathError{Op: "open", Path: "a.yaml", Err: syscall.EMFILE}
	if got := openError("a.yaml", exhausted).Error(); got != "can't open a.yaml: too many open files" {
		t.Errorf("got %q", got)
	}
}

func TestStatusIsTheGravestOfAllErrors(t *testing.T) {
	faults := spec.Diagnostics{spec.Errorf(spec.Pos{Line: 1, Col: 1}, spec.CodeEmptySpec, "empty")}
	drift := &driftError{"differs"}
	usage := usageErrorf("wrong")
	failed := errors.New("disk on fire")
	cases := []struct {
		name   string
		err    error
		status int
		lines  int // of JSON objects
	}{
		{"nothing", nil, statusDone, 0},
		{"faults", faults, statusFaults, 1},
		{"drift twice", errors.Join(drift, drift), statusFaults, 2},
		{"usage", errors.Join(faults, usage), statusUsage, 2},
		{"failed", errors.Join(errors.Join(usage, failed), faults), statusFailed, 3},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			if status := report(&out, true, c.err); status != c.status {
				t.Errorf("status %d, expected %d", status, c.status)
			}
			var objects []map[string]any
			if err := json.Unmarshal(out.Bytes(), &objects); err != nil && c.err != nil {
				t.Fatal(err)
			}
			if len(objects) != c.lines {
				t.Errorf("%d objects, expected %d: %s", len(objects), c.lines, out.Bytes())
			}
		})
	}
}

func TestDidYouMean(t *testing.T) {
	cases := []struct{ word, expected string }{
		{"genrate", ": did you mean generate?"},
		{"Plan", ": did you mean plan?"},
		{"chekc", ": did you mean check?"},
		{"reshard", ""},
		{"x", ""},
		{"", ""},
	}
	for _, c := range cases {
		if got := didYouMean(c.word, commandNames()); got != c.expected {
			t.Errorf("%q: got %q, expected %q", c.word, got, c.expected)
		}
	}
}

func TestMessagesNameTheCommandThatRuns(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if got := programName(); got != "go tool shardgen" {
		t.Errorf("got %q where no shardgen is in the path", got)
	}
}

func TestShellWord(t *testing.T) {
	cases := []struct{ word, expected string }{
		{"a/b-1.yaml", "a/b-1.yaml"},
		{"own folder", "'own folder'"},
		{"it's", `'it'\''s'`},
		{"$HOME", "'$HOME'"},
	}
	for _, c := range cases {
		if got := shellWord(c.word); got != c.expected {
			t.Errorf("%q: got %s, expected %s", c.word, got, c.expected)
		}
	}
}

// terminal is a buffer that may be read while it is written.
type terminal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *terminal) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *terminal) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func TestProgressShowsLongWorkOnATerminal(t *testing.T) {
	var w terminal
	failed := errors.New("failed")
	err := progress(&w, true, time.Millisecond, "planning a.yaml", func() error {
		for deadline := time.Now().Add(10 * time.Second); w.String() == ""; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing was shown within 10 s")
			}
		}
		return failed
	})
	if err != failed {
		t.Errorf("got error %v, expected that of the work", err)
	}
	const first, last = "\rplanning a.yaml ... 0 s\x1b[K", "\r\x1b[K"
	if text := w.String(); !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		t.Errorf("got %q, expected %q first and %q last", text, first, last)
	}
}

func TestProgressIsSilentForShortWorkAndElsewhere(t *testing.T) {
	var w terminal
	done := func() error { return nil }
	slow := func() error { time.Sleep(10 * time.Millisecond); return nil }
	if err := errors.Join(progress(&w, true, time.Hour, "short", done), progress(&w, false, time.Millisecond, "slow", slow)); err != nil {
		t.Error(err)
	}
	if isTerminal(&w) || w.String() != "" {
		t.Errorf("got %q, expected nothing", w.String())
	}
}
