package local

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
)

// children are the groups split off from a group. What befalls the group, or
// one of its ranks, befalls them too.
type children struct {
	mu     sync.Mutex
	groups map[childKey]*child
	failed error // why the parent was aborted
}

// childKey names a group by the collective that split it off and its color.
type childKey struct {
	seq   uint64
	color int64
}

// child is a group with its members' ranks in the parent, by their new rank.
type child struct {
	group   *Group
	members []int
}

// preference is what a rank passes to Split.
type preference struct {
	color, key int64
	rank       int
}

const preferenceBytes = 16

// Split implements comm.Communicator. The new group has the deadline of this
// one. Groups that differ in what they ask for are not compared.
func (c *Communicator) Split(ctx context.Context, subject string, color, key int) (comm.Communicator, error) {
	own := binary.LittleEndian.AppendUint64(nil, uint64(color))
	own = binary.LittleEndian.AppendUint64(own, uint64(key))
	all := make([]byte, len(own)*c.Size())
	c.AllGather(subject, device.HostMemory(all), device.HostMemory(own))
	seq := c.issued.Load()
	if err := c.Synchronize(ctx, c.stream.Record()); err != nil {
		c.Abort(err) // ends the collective, which uses this function's memory
		_ = c.stream.Synchronize(context.Background(), c.stream.Record())
		return nil, fmt.Errorf("splitting the group: %w", err)
	}
	members := membersOf(int64(color), all)
	g, err := c.group.children.join(childKey{seq, int64(color)}, members, c.group.timeout)
	if err != nil {
		return nil, err
	}
	return g.Communicator(slices.Index(members, c.rank)), nil
}

// membersOf returns the ranks with a color, ordered by key and rank.
func membersOf(color int64, all []byte) []int {
	var chosen []preference
	for r := range len(all) / preferenceBytes {
		b := all[r*preferenceBytes:]
		p := preference{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:])), r}
		if p.color == color {
			chosen = append(chosen, p)
		}
	}
	slices.SortFunc(chosen, func(a, b preference) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.rank, b.rank)) })
	members := make([]int, len(chosen))
	for i, p := range chosen {
		members[i] = p.rank
	}
	return members
}

// join returns the group of a split, which the first of its members makes.
func (c *children) join(k childKey, members []int, timeout time.Duration) (*Group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.groups[k]; known != nil {
		return known.group, nil
	}
	g, err := New(len(members), Options{Timeout: timeout})
	if err != nil {
		return nil, err
	}
	if c.failed != nil {
		g.Abort(c.failed)
	}
	if c.groups == nil {
		c.groups = map[childKey]*child{}
	}
	c.groups[k] = &child{g, members}
	return g, nil
}

func (c *children) abort(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = cause
	for _, known := range c.groups {
		known.group.Abort(cause)
	}
}

// leave takes a rank of the parent out of the groups that it is a member of.
func (c *children) leave(rank int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.groups {
		if at := slices.Index(known.members, rank); at >= 0 {
			known.group.Leave(at, err)
		}
	}
}
