package conformance

import (
	"fmt"
	"strings"
	"testing"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/spec"
)

func parse(t *testing.T, params ...string) *spec.Model {
	t.Helper()
	text := "apiVersion: shardgen/v1alpha1\nmodel: m\ntopology: {world: [2, 512]}\nblocks:\n  - name: b\n    params:\n"
	for _, p := range params {
		text += "      - {" + p + "}\n"
	}
	m, faults := spec.Parse("m.yaml", []byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return m
}

func TestShrinkKeepsWhichDimensionsAreEqual(t *testing.T) {
	m := parse(t, "name: a, shape: [50257, 768]", "name: b, shape: [768, 3072, 2, 0]", "name: c, shape: []")
	Shrink(m)
	o, err := NewOracle(m)
	if err != nil {
		t.Fatal(err)
	}
	var shapes []string
	for _, w := range o.Owners {
		shapes = append(shapes, fmt.Sprint(w.Shape))
	}
	if got := strings.Join(shapes, " "); got != "[13 7] [7 11 2 0] []" {
		t.Errorf("shapes %s", got)
	}
	if got := fmt.Sprint(o.worlds()); got != "[1 2 3 4 8]" {
		t.Errorf("worlds %s", got)
	}
}

func TestChainsOfTiesEndAtTheOwner(t *testing.T) {
	o, err := NewOracle(parse(t, "name: c, tied_to: b", "name: b, tied_to: a", "name: a, shape: [3]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range o.Blocks[0].Fields {
		if f.Owner != o.Owners[0] || f.Own != (f.Param == "a") {
			t.Errorf("%s belongs to %s", f.Param, f.Owner.Name)
		}
	}
	if _, err := NewOracle(parse(t, "name: a, tied_to: b", "name: b, tied_to: a")); err == nil {
		t.Error("a cycle of ties has an owner")
	}
}

func TestOwnershipFindsHolesAndOverlaps(t *testing.T) {
	o, err := NewOracle(parse(t, "name: a, shape: [10]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spans []span
		good  bool
	}{
		{[]span{{4, 10}, {0, 4}}, true},
		{[]span{{0, 10}}, true},
		{[]span{{0, 4}, {5, 10}}, false},
		{[]span{{0, 5}, {4, 10}}, false},
		{[]span{{0, 9}}, false},
		{[]span{{0, 10}, {0, 10}}, false},
		{nil, false},
	} {
		owned := &ownership{ranges: map[string][]span{}}
		for _, s := range c.spans {
			owned.add(shard.Shard{Name: "a", Offset: s.offset, Len: s.end - s.offset})
		}
		if err := owned.tile(o); (err == nil) != c.good {
			t.Errorf("%v: error %v", c.spans, err)
		}
	}
}
