package cli

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progressDelay is how long work stays silent.
const progressDelay = time.Second

// progress runs work and, if it takes longer than delay, says on a terminal
// what is going on until it ends. Elsewhere nothing is printed.
func progress(w io.Writer, terminal bool, delay time.Duration, what string, work func() error) error {
	if !terminal {
		return work()
	}
	ended, silent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(silent)
		showProgress(w, delay, what, ended)
	}()
	defer func() {
		close(ended)
		<-silent
	}()
	return work()
}

// showProgress writes one line that counts seconds and wipes it at the end.
func showProgress(w io.Writer, delay time.Duration, what string, ended <-chan struct{}) {
	begin := time.Now()
	tick := time.NewTicker(delay)
	defer tick.Stop()
	shown := false
	for {
		select {
		case <-tick.C:
			shown = true
			fmt.Fprintf(w, "\r%s ... %.0f s\x1b[K", what, time.Since(begin).Seconds())
		case <-ended:
			if shown {
				io.WriteString(w, "\r\x1b[K")
			}
			return
		}
	}
}

// isTerminal reports whether a stream is a terminal, or a device like one.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// long runs work of the call that may take long.
func (c *call) long(what string, work func() error) error {
	return progress(c.stderr, isTerminal(c.stderr), progressDelay, what, work)
}
