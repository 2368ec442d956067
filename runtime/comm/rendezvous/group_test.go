package rendezvous

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
)

// A test binary that is started with this variable is a rank of a job: see rank.
const roleVariable = "SHARDGEN_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := rank(role); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rank is a rank in a process of its own: it joins, says "joined", and does what
// its role says.
func rank(role string) error {
	e, err := FromEnvironment()
	if err != nil {
		return err
	}
	g, err := Join(context.Background(), e, Options{Timeout: soon})
	if err != nil {
		return err
	}
	if _, err := g.Watch("world", &member{rank: g.Rank(), issued: 6, completed: 6}); err != nil {
		return err
	}
	fmt.Println("joined")
	switch role {
	case "fail":
		g.Abort(errors.New("the loss is NaN"))
	case "wait":
		<-g.Failed()
		fmt.Println(g.Err())
	case "hang":
		select {}
	}
	return g.Close()
}

// process is a rank in a process of its own.
type process struct {
	cmd *exec.Cmd
	out *strings.Builder
	mu  *sync.Mutex
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func start(t *testing.T, e Environment, role string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), out: &strings.Builder{}, mu: &sync.Mutex{}}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role,
		fmt.Sprint("RANK=", e.Rank), fmt.Sprint("WORLD_SIZE=", e.Size), fmt.Sprint("LOCAL_RANK=", e.LocalRank),
		"MASTER_ADDR="+e.Host, fmt.Sprint("SHARDGEN_PORT=", e.Ports[0]), "SHARDGEN_TOKEN="+e.Token)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	return p
}

// joined waits until a process has joined its group.
func (p *process) joined(t *testing.T) {
	t.Helper()
	for range 1000 {
		if strings.Contains(p.output(), "joined") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the process did not join: %s", p.output())
}

// member is a communicator of the tests.
type member struct {
	mu                sync.Mutex
	rank              int
	issued, completed uint64
	aborted           *PeerError
	closed            []Progress
}

func (m *member) Progress(until uint64) Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := Progress{Rank: m.rank, Issued: m.issued, Completed: m.completed}
	if until > 0 {
		p.Requests = []Request{{Sequence: until, Operation: comm.Broadcast, Subject: "h.3/bf16", Bytes: 8, Root: m.rank}}
	}
	return p
}

func (m *member) Aborted(cause *PeerError) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.aborted = cause
}

func (m *member) Closed(p Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = append(m.closed, p)
}

// eventually waits for what other goroutines do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("not in time: %s", what)
}

// withProcesses joins as rank 0 or 1 a job whose other ranks are processes of
// the given roles.
func withProcesses(t *testing.T, own int, roles ...string) (*Group, []*process) {
	t.Helper()
	all := ranks(t, len(roles)+1)
	var processes []*process
	for i, role := range roles {
		r := i + 1
		if r == own {
			r = 0
		}
		processes = append(processes, start(t, all[r], role))
	}
	g, err := Join(context.Background(), all[own], Options{Timeout: soon})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	for _, p := range processes {
		p.joined(t)
	}
	return g, processes
}

func awaitFailure(t *testing.T, g *Group, rank int, words ...string) {
	t.Helper()
	start := time.Now()
	select {
	case <-g.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("rank ", g.Rank(), " did not hear of it")
	}
	within(t, start, 3*time.Second)
	var peer *PeerError
	if err := g.Err(); !errors.As(err, &peer) || peer.Rank != rank {
		t.Errorf("rank %d: %v, expected an error of rank %d", g.Rank(), err, rank)
	}
	wantWords(t, g.Err(), words...)
}

func TestAKilledProcessIsNoticedByAllRanksAtOnce(t *testing.T) {
	for name, own := range map[string]int{"seen by rank 0": 0, "rank 0 itself": 1} {
		t.Run(name, func(t *testing.T) {
			g, processes := withProcesses(t, own, "hang", "wait")
			_ = processes[0].cmd.Process.Kill() // the first is rank 1, or rank 0 where this is rank 1
			awaitFailure(t, g, 1-own, "ended without a word", fmt.Sprint("pid ", processes[0].cmd.Process.Pid))
			eventually(t, "the third rank's error", func() bool {
				return strings.Contains(processes[1].output(), fmt.Sprintf("rank %d: its process", 1-own))
			})
		})
	}
}

func TestAnAbortReachesAllProcessesWithItsReason(t *testing.T) {
	g, processes := withProcesses(t, 0, "fail", "wait")
	awaitFailure(t, g, 1, "the loss is NaN")
	eventually(t, "the third rank's error", func() bool { return strings.Contains(processes[1].output(), "rank 1: the loss is NaN") })
}

func TestASleepingProcessIsNoFailureButMissesInTheReport(t *testing.T) {
	g, processes := withProcesses(t, 0, "hang", "wait")
	own := &member{issued: 7, completed: 6}
	c, err := g.Watch("world", own)
	if err != nil {
		t.Fatal(err)
	}
	if got := reporters(c); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("ranks %v reported, expected all", got)
	}
	if err := processes[0].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	if got := reporters(c); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("ranks %v reported, expected all but the one that sleeps", got)
	}
	within(t, start, 2*time.Second)
	if g.Err() != nil {
		t.Error(g.Err())
	}
	g.Abort(errors.New("over"))
}

func reporters(c *Channel) (ranks []int) {
	for _, p := range c.Report(context.Background(), 500*time.Millisecond, 0) {
		ranks = append(ranks, p.Rank)
	}
	slices.Sort(ranks)
	return ranks
}

func TestLeavingAfterSuccessIsNoFailure(t *testing.T) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 4, soon)
			var wait sync.WaitGroup
			wait.Go(func() { _ = groups[0].Close() }) // stays until the others are done
			_ = groups[2].Close()
			time.Sleep(100 * time.Millisecond)
			for _, r := range []int{1, 3} {
				if err := groups[r].Err(); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
				wantWords(t, func() error { _, err := groups[r].Exchange(context.Background(), nil); return err }(), "have left the job")
			}
			_ = groups[1].Close()
			_ = groups[3].Close()
			wait.Wait()
		})
	}
}

func TestTheFirstErrorCountsOnAllRanks(t *testing.T) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 3, soon)
			groups[2].Abort(&comm.Error{Operation: comm.AllGather, Sequence: 9, Subject: "w", Rank: 2, Missing: []int{1}})
			for _, r := range []int{0, 1} {
				awaitFailure(t, groups[r], 2, "all-gather of w (sequence 9)", "no sign of ranks [1]")
				var peer *PeerError
				if !errors.As(groups[r].Err(), &peer) || peer.Sequence != 9 || !slices.Equal(peer.Missing, []int{1}) {
					t.Errorf("rank %d: %+v", r, peer)
				}
				groups[r].Abort(errors.New("later"))
				if _, err := groups[r].Exchange(context.Background(), nil); !errors.As(err, &peer) {
					t.Errorf("exchange: %v", err)
				}
			}
		})
	}
}

func TestExchangeNamesWhoDoesNotCome(t *testing.T) {
	for name, open := range kinds {
		groups := open(t, 3, 300*time.Millisecond)
		errs := onEach(groups[:2], func(g *Group) error { _, err := g.Exchange(context.Background(), nil); return err })
		for r, err := range errs {
			wantWords(t, err, fmt.Sprintf("rank %d", r), "no sign of ranks [2] within 300ms")
		}
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestChannelsTellTheirMembersWhatPeersDo(t *testing.T) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 3, soon)
			members := make([]*member, 3)
			channels := make([]*Channel, 3)
			watch := func(r int) {
				members[r] = &member{rank: r, issued: uint64(10 + r), completed: 10}
				c, err := groups[r].Watch("world/0", members[r])
				if err != nil {
					t.Fatal(err)
				}
				channels[r] = c
			}
			watch(0)
			watch(1)
			channels[0].Close()
			channels[1].Abort(errors.New("out of memory"))
			if name == "processes" {
				time.Sleep(50 * time.Millisecond)
			}
			watch(2) // hears of both although it comes later
			eventually(t, "what came before", func() bool {
				members[2].mu.Lock()
				defer members[2].mu.Unlock()
				return members[2].aborted != nil && strings.Contains(members[2].aborted.Error(), "rank 1: out of memory") &&
					reflect.DeepEqual(members[2].closed, []Progress{{Rank: 0, Issued: 10, Completed: 10}})
			})
			eventually(t, "the close", func() bool {
				members[1].mu.Lock()
				defer members[1].mu.Unlock()
				return len(members[1].closed) == 1
			})
			if members[0].aborted != nil || groups[0].Err() != nil {
				t.Error("a closed end was told, or the whole job failed")
			}
			if _, err := groups[0].Watch("world/0", members[0]); err == nil || !strings.Contains(err.Error(), "used before") {
				t.Errorf("a second use: %v", err)
			}
		})
	}
}

func TestReportHasAllThatKnowTheChannel(t *testing.T) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 4, soon)
			var c *Channel
			for _, r := range []int{0, 1, 3} {
				var err error
				if c, err = groups[r].Watch("world", &member{rank: r, issued: uint64(r)}); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			got := c.Report(context.Background(), 10*time.Second, 7)
			within(t, start, 2*time.Second) // all answer, rank 2 with nothing
			slices.SortFunc(got, func(a, b Progress) int { return a.Rank - b.Rank })
			asked := func(root int) []Request {
				return []Request{{Sequence: 7, Operation: comm.Broadcast, Subject: "h.3/bf16", Bytes: 8, Root: root}}
			}
			want := []Progress{{Rank: 0, Requests: asked(0)}, {Rank: 1, Issued: 1, Requests: asked(1)}, {Rank: 3, Issued: 3, Requests: asked(3)}}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%v, expected %v", got, want)
			}
			if text := got[1].Requests[0].String(); text != "broadcast of h.3/bf16 (8 bytes from rank 1)" {
				t.Error(text)
			}
		})
	}
}

func TestRanksOfOneProcessKeepEachOthersErrors(t *testing.T) {
	groups, boom := kinds["inside"](t, 2, soon), errors.New("boom")
	groups[1].Abort(boom)
	if err := groups[0].Err(); !errors.Is(err, boom) {
		t.Error(err)
	}
	groups = kinds["inside"](t, 2, soon)
	AbortAll(groups, boom)
	for _, g := range groups {
		if g.Err() != boom {
			t.Error(g.Err())
		}
	}
}

// A member that has the token and then speaks nonsense has failed; the others
// hear its name.
func TestNonsenseAfterTheHandshakeFailsThatRank(t *testing.T) {
	for name, frame := range map[string][]byte{
		"huge":    {0xff, 0xff, 0xff, 0xff},
		"empty":   {0, 0, 0, 0},
		"no json": append(binary.BigEndian.AppendUint32(nil, 3), "}{x"...),
		"kind":    append(binary.BigEndian.AppendUint32(nil, 16), `{"kind":"start"}`...),
		"to":      append(binary.BigEndian.AppendUint32(nil, 29), `{"kind":"answer","to":-5}    `...),
	} {
		t.Run(name, func(t *testing.T) {
			groups := newGroups(t, 3, soon)
			groups[1].link.(*memberLink).peer.send(frame)
			if name == "to" { // goes nowhere, but is a message
				groups[1].Abort(errors.New("end"))
			}
			awaitFailure(t, groups[0], 1)
			awaitFailure(t, groups[2], 1)
		})
	}
}

func TestAPeerThatReadsNothingIsGivenUp(t *testing.T) {
	g, processes := withProcesses(t, 0, "hang")
	if err := processes[0].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, MaxPayload)
	for range maxQueued/MaxPayload + 16 {
		if _, err := g.Broadcast(context.Background(), payload); err != nil {
			break
		}
	}
	awaitFailure(t, g, 1, "left too much unread")
}

// Texts of peers stand in errors, which go to terminals.
func TestTextsOfPeersArePrintable(t *testing.T) {
	sent := &message{Kind: kindAnswer, Text: "a\x1b[2J", Progress: &Progress{Requests: []Request{{Subject: "b\x1b[2J"}}}}
	frame, err := encode(sent)
	if err != nil {
		t.Fatal(err)
	}
	m, err := readMessage(bytes.NewReader(frame))
	if err != nil {
		t.Fatal(err)
	}
	if text := m.Text + m.Progress.Requests[0].Subject; strings.Contains(text, "\x1b") || !strings.Contains(text, "b") {
		t.Errorf("%q", text)
	}
}
