package double

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ebitengine/purego"
)

// control are the functions that the driver's double has for tests.
type control struct {
	fault   func(spec string) string
	set     func(name, value string) string
	calls   func(name string) int64
	check   func() int64
	finding func(i int64) string
	reset   func()
}

// open opens both libraries. They stay open: a process has one double.
func (l *Libraries) open() error {
	cuda, err := purego.Dlopen(l.CUDA, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return err
	}
	if _, err := purego.Dlopen(l.NCCL, purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
		return err
	}
	purego.RegisterLibFunc(&l.calls.fault, cuda, "emu_fault")
	purego.RegisterLibFunc(&l.calls.set, cuda, "emu_set")
	purego.RegisterLibFunc(&l.calls.calls, cuda, "emu_calls")
	purego.RegisterLibFunc(&l.calls.check, cuda, "emu_check")
	purego.RegisterLibFunc(&l.calls.finding, cuda, "emu_finding")
	purego.RegisterLibFunc(&l.calls.reset, cuda, "emu_reset")
	return l.Set("EMU_IMAGES", l.Images)
}

// onThread calls a function whose text is the calling thread's until its next
// call.
func onThread(call func() string) string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return call()
}

func failure(text string) error {
	if text == "" {
		return nil
	}
	return errors.New("CUDA double: " + text)
}

// Set changes a setting in place of the environment's: EMU_SCHEDULE
// (random:<seed>, starve:<0 to 3>, fifo or lazy), EMU_MEMORY (bytes of a device),
// EMU_DEVICES (before cuInit), EMU_DEADLINE (seconds).
func (l *Libraries) Set(name, value string) error {
	return failure(onThread(func() string { return l.calls.set(name, value) }))
}

// Fault injects a fault, such as "cuMemAlloc_v2:2:after=3": src/cuda/faults.cc
// has them all.
func (l *Libraries) Fault(spec string) error {
	return failure(onThread(func() string { return l.calls.fault(spec) }))
}

// Calls returns how often a call was made since the last Reset; names have the
// suffix of their version.
func (l *Libraries) Calls(name string) int64 { return l.calls.calls(name) }

// Check returns what the program did wrong: writes beside memory, accesses to
// freed memory, and what it has not freed so far.
func (l *Libraries) Check() []string {
	var findings []string
	for i := range l.calls.check() {
		findings = append(findings, onThread(func() string { return l.calls.finding(i) }))
	}
	return findings
}

// Reset forgets faults, counts and findings, and ends all contexts, queued work
// and communicators, so that the next test starts anew. Settings stay. Goroutines
// that an abandoned start of a communicator left behind end by it; they are waited
// for, because what they let go of must not be the next test's, and what they call
// doesn't count.
func (l *Libraries) Reset() {
	l.calls.reset()
	AwaitAbandoned()
	l.calls.reset() // also where they ended before the look
}

// AwaitAbandoned waits, at most ten seconds, until no goroutine is inside the start
// of a communicator.
func AwaitAbandoned() {
	stacks := make([]byte, 1<<20)
	for range 10_000 {
		if !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("nccl.(*Communicator).meet")) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// String says where the libraries are.
func (l *Libraries) String() string { return fmt.Sprintf("%s, %s", l.CUDA, l.NCCL) }
