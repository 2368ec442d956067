// Package dynlib opens shared libraries of the machine while the program runs:
// the CUDA driver, NCCL. A binary therefore starts where they are missing, and
// says what is missing when it is asked to use them.
//
// It takes the names of a library and a table of [Prototype]s, and gives the
// addresses of the functions, which are called through [Call]. It works on 64-bit
// Linux; elsewhere [Open] returns an error. It imports purego and the standard
// library.
package dynlib

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// Library says where a library may be.
type Library struct {
	Name       string   // for messages, such as "the CUDA driver"
	Variable   string   // environment variable with a path that is used instead of Candidates; may be empty
	Candidates []string // the soname first, then usual absolute paths
	Provides   string   // what would provide the library, for messages
}

// Handle is an open library. It stays open as long as the process.
type Handle struct {
	name, path string
	address    uintptr
}

// Attempt is a path that could not be opened.
type Attempt struct {
	Path string
	Err  error
}

// Error says that a library could not be opened from any of its paths.
type Error struct {
	Library  Library
	Attempts []Attempt
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s can't be opened", e.Library.Name)
	if e.Library.Provides != "" {
		fmt.Fprintf(&b, "; it comes with %s", e.Library.Provides)
	}
	if e.Library.Variable != "" {
		fmt.Fprintf(&b, "; where it is elsewhere, set %s to its path", e.Library.Variable)
	}
	separator := "; tried "
	for _, a := range e.Attempts {
		b.WriteString(separator + a.Path)
		if why := a.Err.Error(); !strings.Contains(why, "No such file") { // which the loader says in many words
			fmt.Fprintf(&b, " (%s)", why)
		}
		separator = ", "
	}
	return b.String()
}

// Unwrap returns why each path failed.
func (e *Error) Unwrap() []error {
	all := make([]error, len(e.Attempts))
	for i, a := range e.Attempts {
		all[i] = a.Err
	}
	return all
}

// opened has the libraries of the process by their path.
var opened = struct {
	sync.Mutex
	handles map[string]*Handle
}{handles: map[string]*Handle{}}

// Open opens the first of a library's paths that there is; one that is open
// already is returned again. The error is an *[Error].
func Open(l Library) (*Handle, error) {
	opened.Lock()
	defer opened.Unlock()
	failed := &Error{Library: l}
	for _, path := range l.paths() {
		if h := opened.handles[path]; h != nil {
			return h, nil
		}
		address, err := open(path)
		if err == nil {
			h := &Handle{name: l.Name, path: path, address: address}
			opened.handles[path] = h
			return h, nil
		}
		failed.Attempts = append(failed.Attempts, Attempt{path, err})
	}
	return nil, failed
}

// paths returns what is tried: a path that the user gives is not passed over for
// another library.
func (l Library) paths() []string {
	if l.Variable != "" {
		if path := os.Getenv(l.Variable); path != "" {
			return []string{path}
		}
	}
	return l.Candidates
}

// Path returns the path or soname that the library was opened from.
func (h *Handle) Path() string { return h.path }

// Symbol returns the address of a function or a variable.
func (h *Handle) Symbol(name string) (uintptr, error) {
	address, err := symbol(h.address, name)
	if err != nil {
		return 0, fmt.Errorf("%s (%s) has no %s: %w", h.name, h.path, name, err)
	}
	return address, nil
}

// Prototype is the declaration of a function in C, without a semicolon:
// "int setenv(const char *name, const char *value, int replace)". Where a header
// maps the name to a symbol with a suffix, because the name without has older
// parameters, it has the suffix.
type Prototype string

// Symbol returns the function's name.
func (p Prototype) Symbol() string {
	before, _, _ := strings.Cut(string(p), "(")
	return before[strings.LastIndexAny(before, " *")+1:]
}

// Arguments returns how many the function takes.
func (p Prototype) Arguments() int {
	if strings.HasSuffix(string(p), "()") {
		return 0
	}
	return strings.Count(string(p), ",") + 1
}

// Functions returns the addresses of all functions of a table, in its order.
func (h *Handle) Functions(table []Prototype) ([]uintptr, error) {
	addresses := make([]uintptr, len(table))
	for i, p := range table {
		var err error
		if addresses[i], err = h.Symbol(p.Symbol()); err != nil {
			return nil, err
		}
	}
	return addresses, nil
}

// Text copies a string of C, of at most a page; a null pointer is empty.
func Text(address uintptr) string {
	const limit = 4096
	// Not an address of Go's: a copy of it is read as a pointer.
	first := *(**byte)(unsafe.Pointer(&address))
	if first == nil {
		return ""
	}
	n := 0
	for n < limit && *(*byte)(unsafe.Add(unsafe.Pointer(first), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(first, n))
}
