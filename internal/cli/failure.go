package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/shardgen/shardgen/spec"
)

// usageError says that the command line itself is wrong.
type usageError struct {
	message string
	usage   string // of the command, empty where none was found
}

func usageErrorf(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

func (e *usageError) Error() string { return e.message }

// driftError says that the files on disk are not what a spec gives.
type driftError struct{ message string }

func (e *driftError) Error() string { return e.message }

// report writes what went wrong to w and returns the exit status: the highest
// of all errors that err joins.
func report(w io.Writer, asJSON bool, err error) int {
	var faults spec.Diagnostics
	var others []error
	status := statusDone
	for _, e := range flatten(err) {
		status = max(status, statusOf(e))
		if found, ok := e.(spec.Diagnostics); ok {
			faults = append(faults, found...)
		} else {
			others = append(others, e)
		}
	}
	switch {
	case status == statusDone:
	case asJSON:
		writeJSON(w, faults, others)
	default:
		writeText(w, faults, others)
	}
	return status
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}

func statusOf(err error) int {
	var usage *usageError
	var drift *driftError
	var faults spec.Diagnostics
	switch {
	case errors.As(err, &usage):
		return statusUsage
	case errors.As(err, &drift), errors.As(err, &faults):
		return statusFaults
	}
	return statusFailed
}

func writeText(w io.Writer, faults spec.Diagnostics, others []error) {
	io.WriteString(w, faults.Render())
	for _, err := range others {
		fmt.Fprintf(w, "shardgen: %v\n", err)
		if usage := (*usageError)(nil); errors.As(err, &usage) && usage.usage != "" {
			io.WriteString(w, usage.usage)
		}
	}
}

// failure is an error without a place, as --json prints it beside diagnostics.
type failure struct {
	Severity spec.Severity `json:"severity"`
	Message  string        `json:"message"`
	Code     string        `json:"code"`
}

func writeJSON(w io.Writer, faults spec.Diagnostics, others []error) {
	list := []any{}
	for _, d := range faults {
		list = append(list, d)
	}
	for _, err := range others {
		list = append(list, failure{spec.SeverityError, err.Error(), failureCodes[statusOf(err)]})
	}
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		text = []byte(err.Error())
	}
	w.Write(append(text, '\n'))
}

// failureCodes are the codes of errors without a place, by exit status.
var failureCodes = map[int]string{statusFaults: "drift", statusUsage: "usage", statusFailed: "failed"}
