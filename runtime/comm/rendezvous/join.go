package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// DefaultTimeout is how long ranks wait for each other if the options don't
// say.
const DefaultTimeout = 5 * time.Minute

// verdictWait is how much longer than rank 0 the others wait.
const verdictWait = time.Second

// Options are what a rendezvous can be told.
type Options struct {
	// Timeout bounds Join, each Broadcast and each Exchange, and rank 0's Close;
	// 0 means DefaultTimeout.
	Timeout time.Duration
	// Token replaces the environment's; the same on all ranks.
	Token string
}

func checkTimeout(timeout time.Duration) (time.Duration, error) {
	if timeout < 0 {
		return 0, fmt.Errorf("rendezvous: timeout %v is negative, 0 means %v", timeout, DefaultTimeout)
	}
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return timeout, nil
}

// Join returns when all ranks of the job have come. Until the deadline it tries
// again whatever may pass: rank 0 not there yet, another program at its port.
// What can't pass ends it at once, on both sides and with the reason: another
// WORLD_SIZE, another protocol, two processes with one RANK. At the deadline the
// error names the ranks that are missing.
func Join(ctx context.Context, e Environment, o Options) (*Group, error) {
	if o.Token != "" {
		e.Token = o.Token
	}
	timeout, err := checkTimeout(o.Timeout)
	if err == nil {
		err = e.check()
	}
	if err != nil {
		return nil, err
	}
	limit := timeout
	if e.Rank > 0 {
		limit += verdictWait // rank 0's deadline comes first: it knows who is missing
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the deadline of %v is over", timeout))
	defer cancel()
	if e.Rank == 0 {
		return joinAsHost(ctx, e, timeout)
	}
	return joinAsMember(ctx, e, timeout)
}

func (e Environment) check() error {
	switch {
	case e.Size < 1 || e.Size > maxRanks:
		return fmt.Errorf("rendezvous of %d ranks, expected 1 to %d", e.Size, maxRanks)
	case e.Rank < 0 || e.Rank >= e.Size:
		return fmt.Errorf("rendezvous of rank %d, expected 0 to %d", e.Rank, e.Size-1)
	case e.Host == "":
		return errors.New("rendezvous: no host of rank 0; set MASTER_ADDR")
	case len(e.Ports) == 0:
		return errors.New("rendezvous: no port; set MASTER_PORT or SHARDGEN_PORT")
	case e.Token == "":
		return errors.New("rendezvous: no token; set SHARDGEN_TOKEN")
	}
	return nil
}

// processName says which process this is, for messages on other hosts.
func processName() string {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown host"
	}
	return fmt.Sprintf("pid %d on %s", os.Getpid(), name)
}
