package shard

import "fmt"

// State of a gathered block or shared parameter.
type State uint8

// The states, in the order in which a gather goes through them.
const (
	NotAvailable State = iota
	Inflight
	Available
)

func (s State) String() string {
	switch s {
	case NotAvailable:
		return "not available"
	case Inflight:
		return "in flight"
	case Available:
		return "available"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// StateError says that something was used in a state that does not allow it:
// a parameter after its release, a second pass beside the first, a closed model.
// It is a programming error. Where a function has no error to return, it panics
// with a *StateError.
type StateError struct {
	Operation string // "read", "gather", "release", ...
	Subject   string // "h.3.mlp.weight", "block h.3", "model gpt2"
	Found     string // what it found
	Fix       string
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%s of %s: %s; %s", e.Operation, e.Subject, e.Found, e.Fix)
}

// RankError is the error that one rank's function returned.
type RankError struct {
	Rank int
	Err  error
}

func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

func (e *RankError) Unwrap() error { return e.Err }

// PanicError is a panic of one rank's function, with the stack where it arose.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the panic's value where that is an error, such as *StateError.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
