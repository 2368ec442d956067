package main

import (
	"math"
	"testing"
)

func TestDifferencesOfModelsAreFound(t *testing.T) {
	nan := float32(math.NaN())
	a := weights{"w": {1, 2, 3}}
	for _, c := range []struct {
		claim string
		other weights
		want  float64
		where string
	}{
		{"equal", weights{"w": {1, 2, 3}}, 0, ""},
		{"the largest counts", weights{"w": {1.25, 2.5, 3}}, 0.5, "w[1]"},
		{"a NaN is never equal, whatever follows it", weights{"w": {nan, 2, 3}}, math.NaN(), "w[0]"},
	} {
		d, where, err := largestDifference(a, c.other)
		same := d == c.want || math.IsNaN(d) && math.IsNaN(c.want)
		if err != nil || !same || where != c.where {
			t.Errorf("%s: %v at %q, %v; want %v at %q", c.claim, d, where, err, c.want, c.where)
		}
	}
	for _, other := range []weights{{}, {"v": {1, 2, 3}}, {"w": {1}}} {
		if _, _, err := largestDifference(a, other); err == nil {
			t.Errorf("%v and %v were compared", a, other)
		}
	}
}

func TestProofFailsWhereRunsDiffer(t *testing.T) {
	run := func(weight float32, loss, heldOut float64) *result {
		r := &result{losses: []microLosses{{5, 5, 5, 5}, {loss, loss, loss, loss}}, weights: weights{"w": {weight}}}
		for i := range r.heldOut {
			r.heldOut[i] = heldOut
		}
		return r
	}
	shorter := run(1, 4, 3)
	shorter.losses = shorter.losses[:1]
	for _, c := range []struct {
		claim string
		other *result
		ranks int
		holds bool
	}{
		{"four equal ranks", run(1, 4, 3), 4, true},
		{"a weight off by one bit", run(math.Nextafter32(1, 2), 4, 3), 4, false},
		{"a loss off by one bit", run(1, math.Nextafter(4, 5), 3), 4, false},
		{"a held-out loss off by one bit", run(1, 4, math.Nextafter(3, 4)), 4, false},
		{"a NaN", run(1, math.NaN(), 3), 4, false},
		{"another number of steps", shorter, 4, false},
		{"two ranks that round otherwise", run(1.01, 4.0001, 3), 2, true},
		{"two ranks that train otherwise", run(1, 4.01, 3), 2, false},
		{"two ranks and a NaN", run(1, 4, math.NaN()), 2, false},
	} {
		if err := prove(run(1, 4, 3), c.other, c.ranks); (err == nil) != c.holds {
			t.Errorf("%s: %v", c.claim, err)
		}
	}
}
