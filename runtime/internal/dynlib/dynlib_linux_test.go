package dynlib

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

// libc is on every machine that runs a program which opens libraries.
var libc = Library{Name: "the C library", Candidates: []string{"libc.so.6"}, Provides: "the system"}

func TestALibraryIsOpenedOnceAndItsFunctionsCalled(t *testing.T) {
	h, err := Open(libc)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Open(libc); err != nil || again != h {
		t.Errorf("the second Open returned %p, %v, expected %p", again, err, h)
	}
	abs, err := h.Symbol("labs")
	if err != nil {
		t.Fatal(err)
	}
	minus := -42
	if got := Call(abs, uintptr(minus)); got != 42 {
		t.Errorf("labs(-42) = %d", got)
	}
	arguments := []uintptr{1}
	if n := testing.AllocsPerRun(100, func() { Call(abs, arguments...) }); n != 0 {
		t.Errorf("a call with a slice of arguments allocates %v times", n)
	}
}

func TestTheSecondCandidateIsOpenedWhereTheFirstIsMissing(t *testing.T) {
	h, err := Open(Library{Name: "it", Candidates: []string{"libnothere.so.9", "libc.so.6"}})
	if err != nil || h.Path() != "libc.so.6" {
		t.Errorf("got %v, %v", h, err)
	}
}

func TestTheErrorSaysWhatWasTriedAndWhatWouldHelp(t *testing.T) {
	notALibrary := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(notALibrary, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DYNLIB_TEST", "")
	_, err := Open(Library{Name: "the driver", Variable: "DYNLIB_TEST", Candidates: []string{"libnothere.so.9", notALibrary}, Provides: "the moon"})
	var failed *Error
	if !errors.As(err, &failed) || len(failed.Attempts) != 2 {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"the driver can't be opened; it comes with the moon", "; tried libnothere.so.9, ", notALibrary + " (", "comes with the moon", "set DYNLIB_TEST"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %q", part, err)
		}
	}
}

func TestThePathOfTheEnvironmentIsUsedAlone(t *testing.T) {
	t.Setenv("DYNLIB_TEST", "/nowhere/lib.so")
	_, err := Open(Library{Name: "it", Variable: "DYNLIB_TEST", Candidates: []string{"libc.so.6"}})
	if err == nil || !strings.Contains(err.Error(), "tried /nowhere/lib.so") || strings.Contains(err.Error(), "libc") {
		t.Errorf("got %v", err)
	}
}

func TestAMissingSymbolIsNamedWithItsLibrary(t *testing.T) {
	h, err := Open(libc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Symbol("cuNothing"); err == nil || !strings.Contains(err.Error(), "the C library (libc.so.6) has no cuNothing: ") {
		t.Errorf("got %v", err)
	}
}

func TestATablesFunctionsAreFoundByTheirPrototypes(t *testing.T) {
	h, err := Open(libc)
	if err != nil {
		t.Fatal(err)
	}
	table := []Prototype{"long labs(long x)", "char *getenv(const char *name)", "void *memcpy(void *to, const void *from, size_t bytes)"}
	for i, want := range []struct {
		symbol    string
		arguments int
	}{{"labs", 1}, {"getenv", 1}, {"memcpy", 3}} {
		if p := table[i]; p.Symbol() != want.symbol || p.Arguments() != want.arguments {
			t.Errorf("%s: %q with %d arguments", p, p.Symbol(), p.Arguments())
		}
	}
	functions, err := h.Functions(table)
	if err != nil || len(functions) != len(table) {
		t.Fatal(functions, err)
	}
	minus := -42
	if got := Call(functions[0], uintptr(minus)); got != 42 {
		t.Errorf("labs(-42) = %d", got)
	}
	if _, err := h.Functions(append(table, "int cuNothing(void)")); err == nil || !strings.Contains(err.Error(), "has no cuNothing") {
		t.Errorf("got %v", err)
	}
}

func TestBindMakesAGoFunction(t *testing.T) {
	h, err := Open(libc)
	if err != nil {
		t.Fatal(err)
	}
	address, err := h.Symbol("labs")
	if err != nil {
		t.Fatal(err)
	}
	var abs func(int64) int64
	Bind(&abs, address)
	if got := abs(-42); got != 42 {
		t.Errorf("labs(-42) = %d", got)
	}
}

func TestTextsEndAtAZeroOrAfterAPage(t *testing.T) {
	long := []byte(strings.Repeat("x", 5000))
	short := []byte("text\x00more")
	for want, address := range map[int]uintptr{0: 0, 4: uintptr(unsafe.Pointer(&short[0])), 4096: uintptr(unsafe.Pointer(&long[0]))} {
		if got := Text(address); len(got) != want {
			t.Errorf("%d bytes, expected %d", len(got), want)
		}
	}
	runtime.KeepAlive(long)
	runtime.KeepAlive(short)
}
