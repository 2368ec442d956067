package importer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/spec"
	"github.com/shardgen/shardgen/spec/importer"
)

const largest = 1<<63 - 1

func TestShapesOfATableAreRefusedOrMakeASpec(t *testing.T) {
	many := func(n int) []int64 { return slices.Repeat([]int64{1}, n) }
	for name, c := range map[string]struct {
		shape []int64
		dtype string
		want  string // part of the error; empty: a spec
	}{
		"the largest dimension":             {[]int64{largest}, "u8", ""},
		"the largest dimension, two bytes":  {[]int64{largest}, "bf16", "more than 2^63-1 bytes"},
		"twice the largest dimension":       {[]int64{largest, largest}, "u8", "more than 2^63-1 bytes"},
		"empty with the largest dimension":  {[]int64{0, largest}, "u8", ""},
		"empty, its strides overflow":       {[]int64{largest, 0, largest}, "u8", "dimensions of zero left out"},
		"empty, its bytes overflow":         {[]int64{0, largest}, "f32", "dimensions of zero left out"},
		"as many dimensions as are allowed": {many(64), "u8", ""},
		"one more":                          {many(65), "u8", `params[0] "w" shape: more than 64 numbers`},
		"a million":                         {many(1_000_000), "u8", `params[0] "w" shape: more than 64 numbers`},
	} {
		t.Run(name, func(t *testing.T) {
			file := importer.NewFile("m.json", tableJSON(t, []entry{{name: "w", shape: c.shape, dtype: c.dtype}}))
			r, err := importer.Import([]importer.File{file}, importer.Options{World: []int64{1}})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "m.json") {
					t.Errorf("error %v, want one with the file and %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, faults := spec.Parse("m.yaml", r.YAML); len(faults) > 0 {
				t.Errorf("the spec has faults: %v\n%s", faults, r.YAML)
			}
		})
	}
}

func TestShapesOfBuffersAreBounded(t *testing.T) {
	shape := strings.Repeat("1,", 1000) + "1"
	text := fmt.Sprintf(`{"model": "m", "params": [["w", [1], "f32", true]], "buffers": [["b", [%s], "f32", false]]}`, shape)
	_, err := importer.Import([]importer.File{importer.NewFile("m.json", []byte(text))}, importer.Options{})
	if err == nil || !strings.Contains(err.Error(), `buffers[0] "b" shape: more than 64 numbers`) {
		t.Errorf("error %v", err)
	}
}
