package gpu

import (
	"context"
	"errors"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
)

// Local launches n ranks as goroutines of this process, rank r on GPU r.
func Local(n int, o Options) shard.Launcher { return local{n, o} }

type local struct {
	ranks   int
	options Options
}

// Launch implements shard.Launcher.
func (l local) Launch(ctx context.Context, f func(context.Context, *shard.Rank) error) error {
	controls, err := rendezvous.Inside(l.ranks, l.options.Timeout)
	if err != nil {
		return err
	}
	if err := Require(l.ranks); err != nil {
		return err
	}
	members := map[int]*member{}
	for r, control := range controls {
		members[r] = &member{control: control, ordinal: func() (int, error) { return r, nil }, timeout: l.options.Timeout}
	}
	return start(inside{controls}, members).Run(ctx, func(ctx context.Context, r int) error { return members[r].run(ctx, f) })
}

// inside is the group of the ranks of one process.
type inside struct{ controls []*rendezvous.Group }

// Abort implements launch.Group.
func (g inside) Abort(cause error) { rendezvous.AbortAll(g.controls, cause) }

// Leave implements launch.Group. A rank that returned nil closes its communicator
// next, which the others are told.
func (g inside) Leave(rank int, err error) {
	if err != nil {
		g.controls[rank].Abort(withoutRank(err, rank))
	}
}

// Close implements launch.Group.
func (g inside) Close() error {
	var all []error
	for _, control := range g.controls {
		all = append(all, control.Close())
	}
	return errors.Join(all...)
}
