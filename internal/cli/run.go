package cli

import (
	"fmt"
	"io"
	"runtime/debug"
)

// The exit statuses.
const (
	statusDone   = 0
	statusFaults = 1 // faults in a spec, or drift
	statusUsage  = 2
	statusFailed = 3 // files, internal errors and anything else
)

// command is one word of the command line.
type command struct {
	name    string
	args    string // as help shows them
	minimum int    // of arguments
	maximum int    // of arguments, -1 for any number
	flags   []taken
	summary string // one line
	detail  string // further paragraphs of its help
	example string
	run     func(*call) error
}

// call is one invocation of a command.
type call struct {
	command *command
	args    []string
	options options
	stdin   io.Reader
	stdout  *checkedWriter
	stderr  io.Writer
}

// Run executes the command line args, the program's name left out, and returns
// the exit status. A panic becomes a message and status 3.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) (status int) {
	c := &call{stdin: stdin, stdout: &checkedWriter{to: stdout}, stderr: stderr}
	defer func() {
		if fault := recover(); fault != nil {
			status = report(stderr, c.options.json, internalError(fault, debug.Stack()))
		}
	}()
	return report(stderr, c.options.json, c.execute(args))
}

// internalError describes a panic. The stack is for whoever mends it.
func internalError(fault any, stack []byte) error {
	return fmt.Errorf("internal error: %v: this is a fault of shardgen, not of the spec: please report it with the spec and what follows\n%s", fault, stack)
}

func (c *call) execute(args []string) error {
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-version") {
		args = []string{"version"} // many try it first
	}
	if err := c.parse(args); err != nil {
		return err
	}
	if c.options.help {
		return c.help()
	}
	if err := c.command.run(c); err != nil {
		return err
	}
	return c.stdout.err()
}

// checkedWriter remembers the first error of a stream, which callers may then
// print to without looking.
type checkedWriter struct {
	to    io.Writer
	first error
}

func (w *checkedWriter) Write(p []byte) (int, error) {
	if w.first != nil {
		return 0, w.first
	}
	n, err := w.to.Write(p)
	w.first = err
	return n, err
}

func (w *checkedWriter) err() error {
	if w.first == nil {
		return nil
	}
	return fmt.Errorf("can't write to standard output: %w", w.first)
}
