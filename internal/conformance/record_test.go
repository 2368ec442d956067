package conformance

import (
	"strings"
	"testing"
)

// recordOf returns a record of points, each with what belongs to it.
func recordOf(points ...[]string) *Record {
	r := newRecord()
	for _, p := range points {
		for _, b := range p[1:] {
			r.add("tensor", []byte(b))
		}
		r.mark(p[0])
	}
	return r
}

func TestARecordTellsWhereBitsDiffer(t *testing.T) {
	want := recordOf([]string{"init", "a", "b"}, []string{"step", "c"})
	for _, c := range []struct {
		name string
		got  *Record
		says string
	}{
		{"the same", recordOf([]string{"init", "a", "b"}, []string{"step", "c"}), ""},
		{"another bit", recordOf([]string{"init", "a", "b"}, []string{"step", "C"}), "point 2, after step"},
		{"moved between tensors", recordOf([]string{"init", "ab", ""}, []string{"step", "c"}), "point 1, after init"},
		{"another point", recordOf([]string{"update", "a", "b"}, []string{"step", "c"}), "point 1, after update"},
		{"fewer points", recordOf([]string{"init", "a", "b"}), "1 points instead of 2"},
		{"more points", recordOf([]string{"init", "a", "b"}, []string{"step", "c"}, []string{"end"}), "point 3, after end"},
	} {
		err := c.got.Differs(want)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}
