package rendezvous

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// soon is longer than any test may take; what must end before it ends by other
// means.
const soon = 20 * time.Second

// freePort returns a port where nobody listens.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// ranks returns the environments of a job on the loopback.
func ranks(t testing.TB, size int) []Environment {
	t.Helper()
	port, all := freePort(t), make([]Environment, size)
	for r := range all {
		all[r] = Environment{Rank: r, Size: size, LocalRank: r, Host: "127.0.0.1", Ports: []int{port}, Token: t.Name()}
	}
	return all
}

// joinAll lets all of them join at the same time.
func joinAll(t testing.TB, all []Environment, timeout time.Duration) ([]*Group, []error) {
	t.Helper()
	groups, errs := make([]*Group, len(all)), make([]error, len(all))
	var wait sync.WaitGroup
	for i, e := range all {
		wait.Go(func() { groups[i], errs[i] = Join(context.Background(), e, Options{Timeout: timeout}) })
	}
	wait.Wait()
	return groups, errs
}

// newGroups returns the ends of a job over TCP; they are closed in the end.
func newGroups(t testing.TB, size int, timeout time.Duration) []*Group {
	t.Helper()
	groups, errs := joinAll(t, ranks(t, size), timeout)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(groups) })
	return groups
}

func closeAll(groups []*Group) {
	onEach(groups, func(g *Group) error { return g.Close() })
}

// onEach calls f for all groups at the same time.
func onEach(groups []*Group, f func(*Group) error) []error {
	errs := make([]error, len(groups))
	var wait sync.WaitGroup
	for r, g := range groups {
		if g != nil {
			wait.Go(func() { errs[r] = f(g) })
		}
	}
	wait.Wait()
	return errs
}

func within(t *testing.T, start time.Time, limit time.Duration) {
	t.Helper()
	if took := time.Since(start); took > limit {
		t.Errorf("it took %v, expected at most %v", took, limit)
	}
}

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, expected one with %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not mention %q", err, word)
		}
	}
}

// kinds are both kinds of groups.
var kinds = map[string]func(testing.TB, int, time.Duration) []*Group{
	"processes": newGroups,
	"inside": func(t testing.TB, size int, timeout time.Duration) []*Group {
		groups, err := Inside(size, timeout)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeAll(groups) })
		return groups
	},
}

func TestBroadcastAndExchangeGiveAllRanksTheSame(t *testing.T) {
	for name, open := range kinds {
		for _, size := range []int{1, 2, 5} {
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				groups := open(t, size, soon)
				for r, err := range onEach(groups, exchangeOften) {
					if err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				}
			})
		}
	}
}

func exchangeOften(g *Group) error {
	for i := range 20 {
		own := bytes.Repeat([]byte{byte(g.Rank()), byte(i)}, 100*i)
		all, err := g.Exchange(context.Background(), own)
		if err != nil {
			return err
		}
		for r, got := range all {
			if !bytes.Equal(got, bytes.Repeat([]byte{byte(r), byte(i)}, 100*i)) {
				return fmt.Errorf("exchange %d: %d bytes of rank %d are wrong", i, len(got), r)
			}
		}
		got, err := g.Broadcast(context.Background(), fmt.Appendf(nil, "rank %d, round %d", g.Rank(), i))
		if want := fmt.Sprintf("rank 0, round %d", i); err != nil || string(got) != want {
			return fmt.Errorf("broadcast gave %q, %w", got, err)
		}
	}
	return nil
}

func TestALargePayloadPassesAndALargerOneFailsAllRanks(t *testing.T) {
	groups := newGroups(t, 2, soon)
	payload := make([]byte, MaxPayload)
	_, _ = rand.Read(payload)
	for _, err := range onEach(groups, func(g *Group) error {
		got, err := g.Broadcast(context.Background(), payload)
		if err == nil && !bytes.Equal(got, payload) {
			err = errors.New("other bytes came")
		}
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	for _, err := range onEach(groups, func(g *Group) error {
		_, err := g.Exchange(context.Background(), make([]byte, MaxPayload+1-g.Rank()))
		return err
	}) {
		wantWords(t, err, "expected at most")
	}
}

func TestMissingRanksAreNamedOnAllThatCame(t *testing.T) {
	t.Parallel()
	all := ranks(t, 4)
	_, errs := joinAll(t, []Environment{all[0], all[2]}, 1500*time.Millisecond)
	wantWords(t, errs[0], "ranks [1 3] have not come", "1.5s")
	wantWords(t, errs[1], "ranks [1 3] have not come")
}

func TestWithoutRankZeroTheErrorSaysWhereItWasLookedFor(t *testing.T) {
	t.Parallel()
	e := ranks(t, 2)[1]
	_, err := Join(context.Background(), e, Options{Timeout: 200 * time.Millisecond})
	wantWords(t, err, "rank 1 of 2", fmt.Sprint(e.Ports[0]), "connection refused", "MASTER_ADDR")
}

func TestTheContextEndsJoin(t *testing.T) {
	for r := range 2 {
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("enough")) })
		start := time.Now()
		_, err := Join(ctx, ranks(t, 2)[r], Options{Timeout: soon})
		wantWords(t, err, "enough")
		within(t, start, 5*time.Second)
	}
}

func TestLateRanksAreWaitedFor(t *testing.T) {
	all := ranks(t, 3)
	groups, errs := make([]*Group, 3), make([]error, 3)
	var wait sync.WaitGroup
	for r := range all {
		wait.Go(func() {
			time.Sleep(time.Duration(2-r) * 100 * time.Millisecond) // rank 0 last
			groups[r], errs[r] = Join(context.Background(), all[r], Options{Timeout: soon})
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	closeAll(groups)
}

func TestAMistakeOfTheLaunchEndsAllRanksAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		change func(all []Environment)
		want   []string
	}{
		"two of a rank": {func(all []Environment) { all[2].Rank = 1 }, []string{"two processes have RANK 1", "pid ", "every process needs a RANK of its own"}},
		"world size":    {func(all []Environment) { all[2].Size = 4 }, []string{"rank 2", "WORLD_SIZE 4, rank 0", "has 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			all, start := ranks(t, 3), time.Now()
			c.change(all)
			_, errs := joinAll(t, all, soon)
			for _, err := range errs {
				wantWords(t, err, c.want...)
			}
			within(t, start, 10*time.Second)
		})
	}
}

func TestALateRankHearsOfAMistakeOfTheLaunchToo(t *testing.T) {
	all, start := ranks(t, 3), time.Now()
	all[1].Size = 4
	late := make(chan error, 1)
	time.AfterFunc(500*time.Millisecond, func() {
		_, err := Join(context.Background(), all[2], Options{Timeout: soon})
		late <- err
	})
	_, errs := joinAll(t, all[:2], soon)
	for _, err := range append(errs, <-late) {
		wantWords(t, err, "WORLD_SIZE 4, rank 0")
	}
	within(t, start, 3*time.Second)
}

func TestASecondRankZeroIsNamed(t *testing.T) {
	all, start := ranks(t, 2), time.Now()
	all[1].Rank = 0
	_, errs := joinAll(t, all, soon)
	for _, err := range errs {
		wantWords(t, err, "two processes have RANK 0")
	}
	within(t, start, 10*time.Second)
}

func TestAWrongTokenIsRefusedWithTheReasonOnBothSides(t *testing.T) {
	t.Parallel()
	all := ranks(t, 2)
	all[1].Token = "another"
	_, errs := joinAll(t, all, time.Second)
	for _, err := range errs {
		wantWords(t, err, "the token of rank 1", "SHARDGEN_TOKEN")
	}
	wantWords(t, errs[0], "ranks [1] have not come")
}

func TestAnotherProtocolVersionIsRefusedWithTheReasonOnBothSides(t *testing.T) {
	t.Parallel()
	all := ranks(t, 2)
	rank0 := make(chan error, 1)
	go func() {
		_, err := Join(context.Background(), all[0], Options{Timeout: time.Second})
		rank0 <- err
	}()
	conn := dial(t, all[0].Ports[0])
	self := newHello(1, 2, "an older build")
	binary.BigEndian.PutUint16(self.raw[len(magic):], protocolVersion+1)
	_, _ = conn.Write(self.raw)
	if h, err := readHello(conn); err != nil || h.size != 2 {
		t.Errorf("rank 0 answered %+v, %v; the other side must see its version", h, err)
	}
	wantWords(t, <-rank0, fmt.Sprintf("version %d of the rendezvous protocol", protocolVersion+1))

	l, err := net.Listen("tcp", address("127.0.0.1", all[1].Ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = conn.Write(self.raw)
		}
	}()
	_, err = Join(context.Background(), all[1], Options{Timeout: soon})
	wantWords(t, err, "refused", fmt.Sprintf("version %d", protocolVersion+1), "the same build")
}

// dial connects to a port of the loopback, at which somebody will listen soon.
func dial(t *testing.T, port int) net.Conn {
	t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", address("127.0.0.1", port))
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(soon))
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if time.Since(start) > 5*time.Second {
			t.Fatal(err)
		}
	}
}

// Strangers say all sorts of things, or nothing, before and after the ranks come.
func TestStrangersNeitherEndNorHoldUpTheRendezvous(t *testing.T) {
	all := ranks(t, 3)
	done := make(chan error, 1)
	var groups []*Group
	go func() {
		var errs []error
		groups, errs = joinAll(t, all[:2], soon)
		done <- errors.Join(errs...)
	}()
	noise := make([]byte, 1<<16)
	_, _ = rand.Read(noise)
	valid := newHello(2, 3, "x").raw
	long := bytes.Clone(valid)
	long[len(long)-2] = 255
	for _, say := range [][]byte{nil, []byte("GET / HTTP/1.1\r\n\r\n"), noise, valid, valid[:20], long, append(bytes.Clone(valid), noise...), []byte(magic + "\xff\xff")} {
		conn := dial(t, all[0].Ports[0])
		_, _ = conn.Write(say)
		if len(say) == 20 {
			_ = conn.Close()
		}
	}
	last, err := Join(context.Background(), all[2], Options{Timeout: soon})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	groups = append(groups, last)
	_, _ = dial(t, all[0].Ports[0]).Write(noise)
	for _, err := range onEach(groups, exchangeOften) {
		if err != nil {
			t.Error(err)
		}
	}
	closeAll(groups)
}

func TestALateComerIsToldThatTheGroupIsComplete(t *testing.T) {
	t.Parallel()
	groups := newGroups(t, 2, soon)
	e := Environment{Rank: 1, Size: 2, Host: "127.0.0.1", Token: t.Name(), Ports: []int{groups[0].link.(*host).listener.Addr().(*net.TCPAddr).Port}}
	_, err := Join(context.Background(), e, Options{Timeout: 200 * time.Millisecond})
	wantWords(t, err, "is complete", "rank 1")
	if err := groups[0].Err(); err != nil {
		t.Errorf("the group failed: %v", err)
	}
}

// occupy lets somebody else listen at a port: it answers with what it is given.
func occupy(t *testing.T, answer string) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, answer)
			if answer != "" {
				_ = conn.Close()
			}
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestATakenPortMakesAllRanksTakeTheNext(t *testing.T) {
	other := newGroups(t, 2, soon) // another job at the first port
	first := other[0].link.(*host).listener.Addr().(*net.TCPAddr).Port
	all := ranks(t, 3)
	for r := range all {
		all[r].Token = "ours"
		all[r].Ports = []int{first, occupy(t, "220 ready\r\n"), all[r].Ports[0]}
		all[r].Ports[1] = all[0].Ports[1]
	}
	groups, errs := joinAll(t, all, soon)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	closeAll(groups)
}

func TestAllPortsTakenNamesTheFix(t *testing.T) {
	e := ranks(t, 2)[0]
	e.Ports = []int{occupy(t, "no"), occupy(t, "no")}
	_, err := Join(context.Background(), e, Options{Timeout: soon})
	wantWords(t, err, fmt.Sprint(e.Ports), "set SHARDGEN_PORT")
}

func TestJoinRefusesWhatMakesNoSense(t *testing.T) {
	good := Environment{Rank: 0, Size: 1, Host: "127.0.0.1", Ports: []int{1}, Token: "t"}
	for name, c := range map[string]struct {
		change func(*Environment, *Options)
		want   string
	}{
		"timeout": {func(_ *Environment, o *Options) { o.Timeout = -1 }, "negative"},
		"size":    {func(e *Environment, _ *Options) { e.Size = 0 }, "0 ranks"},
		"large":   {func(e *Environment, _ *Options) { e.Size = maxRanks + 1 }, "expected 1 to"},
		"rank":    {func(e *Environment, _ *Options) { e.Rank = 1 }, "rank 1, expected 0 to 0"},
		"host":    {func(e *Environment, _ *Options) { e.Host = "" }, "MASTER_ADDR"},
		"ports":   {func(e *Environment, _ *Options) { e.Ports = nil }, "MASTER_PORT"},
		"token":   {func(e *Environment, _ *Options) { e.Token = "" }, "SHARDGEN_TOKEN"},
	} {
		e, o := good, Options{}
		c.change(&e, &o)
		if _, err := Join(context.Background(), e, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Inside(0, 0); err == nil {
		t.Error("a group of no ranks, no error")
	}
}

func TestCloseEndsTheGoroutinesAndFreesThePort(t *testing.T) {
	all, before := ranks(t, 4), runtime.NumGoroutine()
	for range 3 {
		groups, errs := joinAll(t, all, soon)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		closeAll(groups)
		within(t, start, 2*time.Second)
	}
	for range 200 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
}

func FuzzReadHello(f *testing.F) {
	f.Add(newHello(1, 2, "x").raw)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err == nil && (h.rank < 0 || h.size < 0 || !bytes.HasPrefix(b, h.raw)) {
			t.Errorf("%q gave %+v", b, h)
		}
	})
}

func FuzzReadMessage(f *testing.F) {
	frame, _ := encode(&message{Kind: kindAnswer, From: 1, To: 2, Progress: &Progress{Rank: 1}, Payload: []byte("x"), Ranks: []int{1}})
	f.Add(frame)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readMessage(bytes.NewReader(b))
		if err == nil && m == nil {
			t.Error("neither a message nor an error")
		}
	})
}

func TestMissingRanksOfALargeJobAreCutInTheStatus(t *testing.T) {
	all := make([]int, 1000)
	for i := range all {
		all[i] = i
	}
	frame, err := encode(&message{Kind: kindWaiting, Ranks: all[:maxNotedRank]})
	if err != nil || len(frame) > 1<<10 {
		t.Errorf("a status of %d bytes, %v", len(frame), err)
	}
	if m, err := readMessage(bytes.NewReader(frame)); err != nil || !slices.Equal(m.Ranks, all[:maxNotedRank]) {
		t.Errorf("%v, %v", m, err)
	}
}
