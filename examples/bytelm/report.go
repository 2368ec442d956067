package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/shardgen/shardgen/examples/bytelm/corpus"
	"github.com/shardgen/shardgen/examples/bytelm/transformer"
	shard "github.com/shardgen/shardgen/runtime"
)

// introduce says what is trained on what, and how.
func introduce(text *corpus.Corpus) {
	fmt.Printf("Text:  %.1f MB of the Go distribution's sources to train on, %.1f MB held out. A token is a byte.\n", megabytes(len(text.Train)), megabytes(len(text.HeldOut)))
	fmt.Printf("Model: %d transformer blocks of width %d with %d heads, context %d; its package is examples/bytelm/bytelm.\n", config.Layers, config.Dim, config.Heads, config.Context)
	fmt.Printf("Step:  %d micro-batches of %d x %d tokens. For each: gather a block's weights, compute, release them, block\n", microBatches, batch, config.Context)
	fmt.Println("       by block; then backwards, gathering and computing each block again to differentiate it, and")
	fmt.Println("       reduce-scattering its gradients. AdamW then updates the part of the weights that a rank holds.")
	fmt.Printf("Loss:  nats a byte; guessing blindly costs ln %d = %.3f.\n", transformer.Vocab, math.Log(transformer.Vocab))
}

func megabytes(n int) float64 { return float64(n) / 1e6 }

// progress prints a line now and then while a run trains.
type progress struct {
	steps int
	shown int // steps that a line was printed for
	since time.Time
}

// lines is about how many lines a run prints.
const lines = 9

// due reports whether step n ends with a line.
func (p *progress) due(n int) bool {
	return n == 0 || (n+1)%max(p.steps/lines, 1) == 0 || n+1 == p.steps
}

// print shows the mean loss and the speed of the steps since the line before.
func (p *progress) print(n int, losses []microLosses) {
	sum := 0.0
	for _, l := range losses[p.shown : n+1] {
		sum += mean(l[:])
	}
	steps := float64(n + 1 - p.shown)
	tokens := steps * microBatches * batch * float64(config.Context)
	fmt.Printf("  step %4d   loss %.3f   %6.0f tokens/s\n", n+1, sum/steps, tokens/time.Since(p.since).Seconds())
	p.shown, p.since = n+1, time.Now()
}

// received returns what was counted between two moments.
func received(from, to shard.Stats) shard.Stats {
	return shard.Stats{
		Gathers: to.Gathers - from.Gathers, GatheredBytes: to.GatheredBytes - from.GatheredBytes,
		Reductions: to.Reductions - from.Reductions, ReducedBytes: to.ReducedBytes - from.ReducedBytes,
	}
}

// printCosts says what a rank received in each of so many steps, and its memory.
func printCosts(s shard.Stats, m shard.Memory, steps int64) {
	fmt.Printf("  a rank received in a step    %s bytes gathered, %s bytes of gradients reduced\n", grouped(s.GatheredBytes/steps), grouped(s.ReducedBytes/steps))
	fmt.Printf("  a rank's memory, planned     %s bytes, %s of them between passes\n", grouped(m.PeakBytes), grouped(m.RestBytes))
	fmt.Printf("  a rank's memory, allocated   %s bytes, all of them at Open\n", grouped(m.AllocatedBytes))
	if resident, ok := residentBytes(); ok {
		fmt.Printf("  the whole process has        %s bytes resident: all ranks, activations, text, Go itself\n", grouped(resident))
	}
}

// residentBytes asks the kernel for the process's resident set size. Only Linux
// tells.
func residentBytes() (int64, bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(status) {
		if kib, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(kib), []byte(" kB"))), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
