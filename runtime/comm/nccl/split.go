package nccl

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/comm"
)

// preference is what a rank passes to Split.
type preference struct {
	color, key int64
	rank       int
}

const preferenceBytes = 16

// Split implements comm.Communicator. The ranks gather each other's color and
// key first, so that those that do not come are named like those of any other
// collective. The new group has the deadline of this one. A failure aborts this
// group too: some of its ranks may wait in NCCL.
func (c *Communicator) Split(ctx context.Context, subject string, color, key int) (comm.Communicator, error) {
	all, err := c.preferences(ctx, subject, color, key)
	if err != nil {
		return nil, fmt.Errorf("splitting the group: %w", err)
	}
	child, err := c.split(ctx, all, int64(color))
	if err != nil {
		err = fmt.Errorf("rank %d: splitting the group for %s: %w", c.rank, subject, err)
		c.stop(err, true)
		return nil, err
	}
	return child, nil
}

// preferences gathers what all ranks pass to Split.
func (c *Communicator) preferences(ctx context.Context, subject string, color, key int) ([]preference, error) {
	host := make([]byte, preferenceBytes*c.size)
	own := host[preferenceBytes*c.rank:][:preferenceBytes]
	binary.LittleEndian.PutUint64(own, uint64(color))
	binary.LittleEndian.PutUint64(own[8:], uint64(key))
	m, err := c.device.Alloc(int64(len(host)))
	if err != nil {
		c.stop(err, true)
		return nil, err
	}
	part := m.Slice(int64(preferenceBytes*c.rank), preferenceBytes)
	if err = c.device.Write(ctx, part, own); err == nil {
		c.AllGather(subject, m, part)
		if err = c.Synchronize(ctx, c.gather.Record()); err == nil {
			err = c.device.Read(ctx, host, m)
		}
	}
	if err != nil {
		c.stop(err, true)
		<-c.watched // the collective uses the memory until then
	}
	return decode(host), errors.Join(err, c.device.Free(m))
}

func decode(all []byte) []preference {
	preferences := make([]preference, len(all)/preferenceBytes)
	for r := range preferences {
		b := all[r*preferenceBytes:]
		preferences[r] = preference{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:])), r}
	}
	return preferences
}

// groupOf returns the ranks with a color in their new order, and the place of the
// color among all: NCCL takes no negative color.
func groupOf(all []preference, color int64) (members []int, index int) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b preference) int {
		return cmp.Or(cmp.Compare(a.color, b.color), cmp.Compare(a.key, b.key), cmp.Compare(a.rank, b.rank))
	})
	for i, p := range all {
		if p.color == color {
			members = append(members, p.rank)
		}
		if i > 0 && p.color <= color && p.color != all[i-1].color {
			index++
		}
	}
	return members, index
}

// split makes the new group's communicator.
func (c *Communicator) split(ctx context.Context, all []preference, color int64) (*Communicator, error) {
	members, index := groupOf(all, color)
	rank := slices.Index(members, c.rank)
	c.splits++
	o := Options{Device: c.device, Rank: rank, Size: len(members), Timeout: c.timeout, Control: c.control}
	child := newCommunicator(c.library, o, fmt.Sprintf("%s/%d.%d", c.name, c.splits, index))
	child.parent = c
	c.mu.Lock()
	c.children = append(c.children, child)
	c.mu.Unlock()
	if err := c.Err(); err != nil { // before the child was among the children
		child.stop(err, false)
	}
	err := child.open(ctx, func(handle *uintptr) error {
		c.call.Lock()
		defer c.call.Unlock()
		parent := c.handle.Load()
		if parent == 0 {
			return c.Err()
		}
		return c.library.call(ncclCommSplit, parent, uintptr(index), uintptr(rank), uintptr(unsafe.Pointer(handle)), 0)
	})
	if err != nil {
		c.forget(child)
		return nil, err
	}
	return child, nil
}

// forget takes a child out of those that end with this communicator.
func (c *Communicator) forget(child *Communicator) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.children = slices.DeleteFunc(c.children, func(other *Communicator) bool { return other == child })
}
