package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
)

// Environment launches this process as one rank of the job that torchrun or Slurm
// started: [rendezvous.FromEnvironment] says which variables it reads. The rank
// computes on the GPU with the number LOCAL_RANK; where CUDA_VISIBLE_DEVICES
// leaves the process a single one, as Slurm does for --gpus-per-task, on that. Two
// processes on one GPU are refused at the start: all ranks name both and the GPU.
//
// Where another process failed first, Run's error is that rank's.
func Environment(o Options) shard.Launcher { return environment{o} }

type environment struct{ options Options }

// Launch implements shard.Launcher.
func (l environment) Launch(ctx context.Context, f func(context.Context, *shard.Rank) error) error {
	e, err := rendezvous.FromEnvironment()
	if err != nil {
		return err
	}
	control, err := rendezvous.Join(ctx, e, rendezvous.Options{Timeout: l.options.Timeout, Token: l.options.Token})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-control.Failed():
			cancel(peerOr(control.Err()))
		case <-ctx.Done():
		}
	}()
	m := &member{control: control, ordinal: func() (int, error) { return ordinal(e.LocalRank) }, timeout: l.options.Timeout, alone: true, localRank: e.LocalRank}
	launched := start(process{control}, map[int]*member{e.Rank: m})
	launched.Failed = func(rank int, err error) error { return &shard.RankError{Rank: rank, Err: err} } // what another rank said, it says better: see below
	err = launched.Run(ctx, func(ctx context.Context, _ int) error { return m.run(ctx, f) })
	if err == nil {
		return nil
	}
	var peer *rendezvous.PeerError
	if errors.As(control.Err(), &peer) && !isOf(peer.Rank, err) {
		return peerOr(peer)
	}
	return err
}

// isOf says whether an error is one of a rank; it may say more than what that
// rank said.
func isOf(rank int, err error) bool {
	var failed *shard.RankError
	return errors.As(err, &failed) && failed.Rank == rank
}

// peerOr returns another rank's error as one of that rank.
func peerOr(err error) error {
	var peer *rendezvous.PeerError
	if errors.As(err, &peer) {
		return &shard.RankError{Rank: peer.Rank, Err: errors.New(peer.Text)}
	}
	return err
}

// ordinal returns the number of the process's GPU.
func ordinal(localRank int) (int, error) {
	count, err := devices()
	if err == nil {
		err = available()
	}
	if err != nil {
		return 0, err
	}
	_, bound := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	switch {
	case localRank < count:
		return localRank, nil
	case count == 1 && bound:
		return 0, nil
	}
	return 0, fmt.Errorf("gpu: the local rank is %d (LOCAL_RANK or SLURM_LOCALID), but this process sees %d GPUs; start at most %d processes on a host%s", localRank, count, count, visible())
}

// process is the group of a rank that is alone in its process.
type process struct{ control *rendezvous.Group }

// Abort implements launch.Group.
func (g process) Abort(cause error) { g.control.Abort(withoutRank(cause, g.control.Rank())) }

// Leave implements launch.Group.
func (g process) Leave(_ int, err error) {
	if err != nil {
		g.Abort(err)
	}
}

// Close implements launch.Group. Rank 0 stays until the other processes are
// done, since it hands on their messages.
func (g process) Close() error { return g.control.Close() }
