package gpucheck

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/generated/tiny"
	"github.com/shardgen/shardgen/internal/devicetest"
	"github.com/shardgen/shardgen/internal/emulated"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
)

func TestWithoutADriverTheStatusSaysSo(t *testing.T) {
	t.Setenv("SHARDGEN_LIBCUDA", "/nowhere/libcuda.so.1")
	var stdout, stderr bytes.Buffer
	if status := Run([]string{"-quick"}, &stdout, &stderr); status != exitNoGPU || stdout.Len() > 0 || !strings.Contains(stderr.String(), "no GPU to check: ") {
		t.Errorf("status %d\n%s%s", status, &stdout, &stderr)
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"-packages nope", `there is no package "nope"; there are alldtypes, tiny`},
		{"-sections nope", `there is no section "nope"; there are kernels, far`},
		{"-timeout 0s", "a timeout above 0"},
		{"more", "expected flags only"},
		{"-nope", "flag provided but not defined"},
	} {
		var stdout, stderr bytes.Buffer
		if status := Run(strings.Fields(c.args), &stdout, &stderr); status != exitUsage || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: status %d\n%s%s", c.args, status, &stdout, &stderr)
		}
	}
	var stdout, stderr bytes.Buffer
	if status := Run([]string{"-help"}, &stdout, &stderr); status != exitOK || !strings.Contains(stderr.String(), "-json file") {
		t.Errorf("-help: status %d\n%s", status, &stderr)
	}
}

func TestARunThatHangsIsGivenUp(t *testing.T) {
	var stderr bytes.Buffer
	if status := await(make(chan int), time.Millisecond, &stderr); status != exitFailed || !strings.Contains(stderr.String(), "given up") {
		t.Errorf("status %d, %s", status, &stderr)
	}
}

func TestWindowsCoverEndsAndPowersOfTwo(t *testing.T) {
	at := windows(farElements, 4)
	for _, element := range []int64{0, farElements - 1, 1<<31 - 1, 1 << 31, 1<<29 - 1, 1 << 29, 1 << 30} {
		covered := false
		for _, first := range at {
			covered = covered || element >= first && element < first+windowElements
		}
		if !covered {
			t.Errorf("no window has element %d", element)
		}
	}
	for _, n := range []int64{windowElements, quickElements, farElements} {
		for _, first := range windows(n, 2) {
			if first < 0 || first+windowElements > n {
				t.Errorf("a window from %d is not inside %d elements", first, n)
			}
		}
	}
}

func TestSumsMayDifferWithinTheirBoundOnly(t *testing.T) {
	sums := func(x ...float32) record { return record{what: "x", t: f32, value: dtype.Bytes(x), bound: 0.5} }
	if err := within(sums(1, 2), sums(1.5, 2)); err != nil {
		t.Error(err)
	}
	if err := within(sums(1, 2), sums(1, 2.75)); err == nil || !strings.Contains(err.Error(), "x: element 1 of 2 is 2, the CPU has 2.75: they differ by 0.75, expected at most 0.5") {
		t.Error(err)
	}
}

func TestGoalsAreMetOrMissed(t *testing.T) {
	r := Report{Rates: []Rate{{Share: 0.5}, {Share: 0.91, Goal: 0.9}, {Share: 0.89, Goal: 0.9}}}
	var verdicts []string
	for i := range r.Rates {
		verdicts = append(verdicts, r.Rates[i].verdict())
	}
	if got := strings.Join(verdicts, "|"); got != "|goal 0.90 met|goal 0.90 missed" || r.missed() != 1 {
		t.Errorf("%s, %d missed", got, r.missed())
	}
}

func TestEveryKernelOfAPackageIsMeasured(t *testing.T) {
	measured := map[string]float64{}
	for _, l := range loads() {
		if _, twice := measured[l.kernel]; twice {
			t.Errorf("%s is measured twice", l.kernel)
		}
		measured[l.kernel] = l.goal
	}
	aims := regexp.MustCompile("_(cast|accumulate|adamw)_")
	for _, name := range emulated.KernelNames() {
		goal, ok := measured[name]
		want := 0.0
		if aims.MatchString(name) {
			want = 0.9
		}
		if !ok || goal != want {
			t.Errorf("%s is measured: %t, with the goal %v, want %v", name, ok, goal, want)
		}
	}
}

func TestKernelsThatNothingComparesAreAnError(t *testing.T) {
	needed := kernel.Needed(&tiny.Descriptor().Layout)
	if err := untested(needed, devicetest.Tested()); err != nil {
		t.Error(err)
	}
	if err := untested(needed, devicetest.Kernels()); err == nil || !strings.Contains(err.Error(), "no test of shardgen_norm_total") {
		t.Errorf("the total of norms has a test: %v", err)
	}
}
