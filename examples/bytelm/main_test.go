package main

import (
	"strings"
	"testing"
)

func TestBadFlagsAreRefusedByName(t *testing.T) {
	good := options{steps: 1, ranks: 4}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flag  string
		spoil func(*options)
	}{
		{"-steps 0", func(o *options) { o.steps = 0 }},
		{"-steps 1000001", func(o *options) { o.steps = maxSteps + 1 }},
		{"-ranks 0", func(o *options) { o.ranks = 0 }},
		{"-ranks 3", func(o *options) { o.ranks = 3 }},
		{"-ranks 8", func(o *options) { o.ranks = 8 }},
		{"-text -1", func(o *options) { o.text = -1 }},
	} {
		o := good
		c.spoil(&o)
		if err := run(t.Context(), o, nil); err == nil || !strings.HasPrefix(err.Error(), c.flag+":") {
			t.Errorf("%s: error %v, want one that begins with the flag", c.flag, err)
		}
	}
	if err := run(t.Context(), good, []string{"600"}); err == nil || !strings.Contains(err.Error(), `"600"`) {
		t.Errorf("an argument that is no flag: %v", err)
	}
}

func TestNumbersAreGroupedByThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestSampledTextCannotDriveATerminal(t *testing.T) {
	if got, want := printable([]byte("func\t{\n\x1b[2J\xff~\x7f\r}")), "func\t{\n.[2J.~..}"; got != want {
		t.Errorf("printable = %q, want %q", got, want)
	}
}

func TestProgressIsShownForTheFirstAndTheLastStep(t *testing.T) {
	for _, steps := range []int{1, 2, 8, 9, 100, 450, maxSteps} {
		p := progress{steps: steps}
		shown := 0
		for n := range min(steps, 1000) {
			if p.due(n) {
				shown++
			}
		}
		if !p.due(0) || !p.due(steps-1) || shown > 2*lines {
			t.Errorf("%d steps: first %v, last %v, %d lines", steps, p.due(0), p.due(steps-1), shown)
		}
	}
}
