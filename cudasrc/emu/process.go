package emu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Process is a running program. It does one launch at a time.
type Process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	fault   bytes.Buffer // what it wrote to its standard error
	broken  error
}

// Start runs a program until ctx ends or Close. With reversed, threads and
// blocks take turns from the last to the first: a kernel that lacks a barrier
// gives another result.
func (p *Program) Start(ctx context.Context, reversed bool) (*Process, error) {
	r := &Process{command: exec.CommandContext(ctx, p.path)}
	if reversed {
		r.command.Args = append(r.command.Args, "-reversed")
	}
	r.command.Stderr = &r.fault
	in, err := r.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("emulator: %w", err)
	}
	out, err := r.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("emulator: %w", err)
	}
	r.in, r.out = in, bufio.NewReaderSize(out, 1<<16)
	if err := r.command.Start(); err != nil {
		return nil, fmt.Errorf("emulator: %w", err)
	}
	return r, nil
}

// Close ends the process. The error is a launch's, or what a sanitizer found at
// the end.
func (r *Process) Close() error {
	_ = r.in.Close()
	err := r.command.Wait()
	if r.broken != nil {
		return r.broken
	}
	if err != nil {
		return fmt.Errorf("emulator: %w: %s", err, strings.TrimSpace(r.fault.String()))
	}
	return nil
}

// Argument is what a kernel gets for one of its parameters.
type Argument struct {
	kind   uint64
	buffer []byte
}

// The kinds of arguments, as driver.h knows them.
const (
	kindValue uint64 = iota
	kindBuffer
	kindNull
)

// Buffer is a pointer parameter: the kernel works on a copy of b at an address
// that is a multiple of 256, and b holds what it left.
func Buffer(b []byte) Argument { return Argument{kindBuffer, b} }

// Null is a pointer parameter that is null.
func Null() Argument { return Argument{kind: kindNull} }

// Value is a parameter of fixed size, a number or a struct of numbers laid out
// as C++ does.
func Value(v any) Argument {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		panic(fmt.Sprintf("emu: Value: %v", err)) // a programming error: no fixed size
	}
	return Argument{kindValue, b}
}

// Grid is the shape of a launch.
type Grid struct{ Blocks, Threads uint64 }

// Launch runs a kernel and waits for it. After an error the process is of no
// more use.
func (r *Process) Launch(kernel string, g Grid, arguments ...Argument) error {
	if r.broken != nil {
		return r.broken
	}
	if err := r.launch(kernel, g, arguments); err != nil {
		_ = r.in.Close()
		_ = r.command.Wait() // all of its standard error is there then
		r.broken = fmt.Errorf("emulator: kernel %s: %w: %s", kernel, err, strings.TrimSpace(r.fault.String()))
	}
	return r.broken
}

func (r *Process) launch(kernel string, g Grid, arguments []Argument) error {
	request := binary.LittleEndian.AppendUint64(nil, uint64(len(kernel)))
	request = append(request, kernel...)
	for _, word := range []uint64{g.Blocks, g.Threads, uint64(len(arguments))} {
		request = binary.LittleEndian.AppendUint64(request, word)
	}
	for _, a := range arguments {
		request = binary.LittleEndian.AppendUint64(request, a.kind)
		request = binary.LittleEndian.AppendUint64(request, uint64(len(a.buffer)))
		request = append(request, a.buffer...)
	}
	if _, err := r.in.Write(request); err != nil {
		return err
	}
	for _, a := range arguments {
		if a.kind != kindBuffer {
			continue
		}
		if _, err := io.ReadFull(r.out, a.buffer); err != nil {
			return err
		}
	}
	return nil
}
