// Package gpu launches ranks that compute on GPUs and talk through NCCL: one rank
// per process, as torchrun and Slurm start them ([Environment]), or all ranks as
// goroutines of one process ([Local]).
//
// It takes [Options] and gives a [shard.Launcher] for [shard.Run]. The CUDA driver
// and NCCL are opened when the launcher starts ranks; until then a program that
// imports the package needs neither. The package may import runtime and all
// packages below it.
package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/comm/nccl"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/internal/launch"
)

// Options are what a launcher can be told.
type Options struct {
	// Timeout bounds each collective, and how long ranks wait for each other at the
	// start; 0 means five minutes.
	Timeout time.Duration
	// Token keeps strangers out of a job of several processes; the same on all
	// ranks. Empty: SHARDGEN_TOKEN, or one that is derived from the job's id.
	Token string
}

// Require says why n ranks can't each have a GPU of this process with NCCL
// between them, and what to do about it; nil where they can.
func Require(n int) error {
	if n < 1 {
		return fmt.Errorf("gpu: %d ranks, expected 1 or more", n)
	}
	count, err := devices()
	if err != nil {
		return err
	}
	if count < n {
		return fmt.Errorf("gpu: %d ranks need as many GPUs, this process sees %d; launch at most %d ranks%s", n, count, count, visible())
	}
	return available()
}

// devices returns the number of GPUs, of which there is one at least.
func devices() (int, error) {
	count, err := cuda.Devices()
	if err != nil {
		return 0, fmt.Errorf("gpu: %w; nvidia-smi shows whether the driver works%s", err, visible())
	}
	if count == 0 {
		return 0, fmt.Errorf("gpu: the driver sees no GPU; nvidia-smi shows those of this machine%s", visible())
	}
	return count, nil
}

// visible says what hides GPUs from this process.
func visible() string {
	const name = "CUDA_VISIBLE_DEVICES"
	if value, ok := os.LookupEnv(name); ok {
		return fmt.Sprintf(" (%s is %q, which hides others)", name, value)
	}
	return ""
}

func available() error {
	if err := nccl.Available(); err != nil {
		return fmt.Errorf("gpu: %w", err)
	}
	return nil
}

// member is one rank of a group and where it runs.
type member struct {
	control *rendezvous.Group
	ordinal func() (int, error) // of its GPU
	timeout time.Duration
	open    []func() error // what is to be closed, in the order in which it was opened

	alone     bool // in its process
	localRank int  // of a rank that is alone
}

// start returns the launch of some of a group's ranks.
func start(g launch.Group, members map[int]*member) launch.Launch {
	return launch.Launch{
		Ranks: slices.Sorted(maps.Keys(members)), Group: g, Failed: shard.Blame, Panicked: shard.Panicked,
		Free: func(rank int) error { return members[rank].close() },
	}
}

// run opens the rank's GPU, joins the communicator and calls f.
func (m *member) run(ctx context.Context, f func(context.Context, *shard.Rank) error) error {
	rank, err := m.join(ctx)
	if err != nil {
		return err
	}
	return f(ctx, rank)
}

// close closes what is open, the last first.
func (m *member) close() error {
	var first error
	for _, closer := range slices.Backward(m.open) {
		first = cmp.Or(first, closer())
	}
	return first
}

// join makes a rank.
func (m *member) join(ctx context.Context) (*shard.Rank, error) {
	ordinal, err := m.ordinal()
	if err != nil {
		return nil, err
	}
	device, err := cuda.Open(ordinal, cuda.Options{})
	if err != nil {
		return nil, err
	}
	m.open = append(m.open, device.Close)
	if m.alone {
		if err := m.claim(ctx, device); err != nil {
			return nil, err
		}
	}
	id, err := m.shareID(ctx)
	if err != nil {
		return nil, err
	}
	c, err := nccl.New(ctx, nccl.Options{Device: device, Rank: m.control.Rank(), Size: m.control.Size(), ID: id, Timeout: m.timeout, Control: m.control})
	if err != nil {
		return nil, err
	}
	m.open = append(m.open, c.Close)
	rank, err := shard.NewRank(c, device)
	if err != nil {
		return nil, err
	}
	m.open = append(m.open, rank.Close)
	return rank, nil
}

// shareID gives all ranks the id that rank 0 makes.
func (m *member) shareID(ctx context.Context) (id nccl.ID, err error) {
	if m.control.Rank() == 0 {
		if id, err = nccl.NewID(); err != nil {
			return id, err
		}
	}
	payload, err := m.control.Broadcast(ctx, id[:])
	if err != nil {
		return id, err
	}
	if len(payload) != nccl.IDBytes {
		return id, fmt.Errorf("the communicator's id has %d bytes, expected %d; run the same build on all ranks", len(payload), nccl.IDBytes)
	}
	return nccl.ID(payload), nil
}

// withoutRank returns a rank's own error: the control channel adds its number.
func withoutRank(err error, rank int) error {
	var failed *shard.RankError
	if errors.As(err, &failed) && failed.Rank == rank {
		return failed.Err
	}
	return err
}
