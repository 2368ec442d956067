package rendezvous

import (
	"fmt"
	"time"
)

// inside is the link between ranks of one process: it delivers at once.
type inside struct {
	rank   int
	groups []*Group
}

// Inside returns the ends of a job whose ranks are goroutines of this process.
// timeout is as in Options.
func Inside(size int, timeout time.Duration) ([]*Group, error) {
	if size < 1 || size > maxRanks {
		return nil, fmt.Errorf("group of %d ranks, expected 1 to %d", size, maxRanks)
	}
	timeout, err := checkTimeout(timeout)
	if err != nil {
		return nil, err
	}
	groups := make([]*Group, size)
	for r := range groups {
		groups[r] = newGroup(r, size, timeout)
		groups[r].link = &inside{rank: r, groups: groups}
	}
	return groups, nil
}

func (l *inside) post(m *message) {
	for r, g := range l.groups {
		if r != l.rank && (m.Kind != kindAnswer || r == m.To) {
			g.deliver(m)
		}
	}
}

func (l *inside) close() {}

// AbortAll ends a job of [Inside] with cause, which is nobody's in particular.
// Only the first error counts.
func AbortAll(groups []*Group, cause error) {
	for _, g := range groups {
		g.fail(cause)
	}
}
