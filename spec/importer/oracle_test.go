package importer_test

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// The oracle reads a spec back with a plain YAML decoder and a template reader
// of its own: slow, lenient, and without a line of the importer.

// flatParam is a parameter of the expanded model. Shape, DType and Frozen are
// empty for an alias.
type flatParam struct {
	Name   string
	Shape  []int64
	DType  string
	Frozen bool
	TiedTo string
}

type oracleSpec struct {
	Model     string        `yaml:"model"`
	Package   string        `yaml:"package"`
	DType     string        `yaml:"dtype"`
	Blocks    []oracleBlock `yaml:"blocks"`
	Overrides []struct {
		Match     string `yaml:"match"`
		Trainable bool   `yaml:"trainable"`
	} `yaml:"overrides"`
}

type oracleBlock struct {
	Name   string            `yaml:"name"`
	Repeat map[string]string `yaml:"repeat"`
	Params []struct {
		Name      string  `yaml:"name"`
		Shape     []int64 `yaml:"shape"`
		DType     string  `yaml:"dtype"`
		Trainable *bool   `yaml:"trainable"`
		TiedTo    string  `yaml:"tied_to"`
	} `yaml:"params"`
}

func decodeSpec(t testingT, text []byte) oracleSpec {
	t.Helper()
	var s oracleSpec
	if err := yaml.Unmarshal(text, &s); err != nil {
		t.Fatalf("the spec is no YAML: %v\n%s", err, text)
	}
	return s
}

// testingT is what the oracle needs of *testing.T and *rapid.T.
type testingT interface {
	Helper()
	Fatalf(format string, args ...any)
}

// bounds returns a block's variable and its first and last index.
func (b oracleBlock) bounds(t testingT) (variable string, first, last int) {
	t.Helper()
	for name, text := range b.Repeat {
		low, high, isRange := strings.Cut(text, "..")
		if !isRange {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatalf("block %q: repeat %q", b.Name, text)
			}
			return name, 0, n - 1
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil {
			t.Fatalf("block %q: repeat %q", b.Name, text)
		}
		return name, first, last
	}
	return "", 0, 0
}

// fill reads a template character by character.
func fill(template, variable string, index int) string {
	var out strings.Builder
	for k := 0; k < len(template); k++ {
		rest := template[k:]
		switch {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			out.WriteByte(template[k])
			k++
		case variable != "" && strings.HasPrefix(rest, "{"+variable+"}"):
			fmt.Fprint(&out, index)
			k += len(variable) + 1
		default:
			out.WriteByte(template[k])
		}
	}
	return out.String()
}

func expandYAML(t testingT, text []byte) []flatParam {
	t.Helper()
	s := decodeSpec(t, text)
	var list []flatParam
	for _, b := range s.Blocks {
		variable, first, last := b.bounds(t)
		for i := first; i <= last; i++ {
			for _, p := range b.Params {
				f := flatParam{Name: fill(p.Name, variable, i), TiedTo: fill(p.TiedTo, variable, i)}
				if f.TiedTo == "" {
					f.Shape, f.DType = append([]int64{}, p.Shape...), p.DType
					if f.DType == "" {
						f.DType = s.DType
					}
					f.Frozen = p.Trainable != nil && !*p.Trainable
					s.override(&f)
				}
				list = append(list, f)
			}
		}
	}
	return list
}

func (s oracleSpec) override(f *flatParam) {
	for _, o := range s.Overrides {
		if globMatches(o.Match, f.Name) {
			f.Frozen = !o.Trainable
		}
	}
}

// globMatches tries every length for each star.
func globMatches(pattern, name string) bool {
	if pattern == "" {
		return name == ""
	}
	if pattern[0] != '*' {
		return name != "" && pattern[0] == name[0] && globMatches(pattern[1:], name[1:])
	}
	for k := 0; k <= len(name); k++ {
		if globMatches(pattern[1:], name[k:]) {
			return true
		}
	}
	return false
}

func compareFlat(t testingT, got, want []flatParam) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("the spec has %d parameters, want %d", len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("parameter %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

var oracleBytes = map[string]int64{
	"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1,
	"i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1,
}

func flatTotals(t *testing.T, params []flatParam) (elements, bytes int64) {
	t.Helper()
	for _, p := range params {
		if p.TiedTo != "" {
			continue
		}
		n := int64(1)
		for _, d := range p.Shape {
			n *= d
		}
		if oracleBytes[p.DType] == 0 {
			t.Fatalf("%s: unknown dtype %q", p.Name, p.DType)
		}
		elements, bytes = elements+n, bytes+n*oracleBytes[p.DType]
	}
	return elements, bytes
}

// blockNames lists the blocks with their ranges: "h.{i} 0..11".
func blockNames(t *testing.T, text []byte) []string {
	t.Helper()
	var names []string
	for _, b := range decodeSpec(t, text).Blocks {
		name := b.Name
		if variable, first, last := b.bounds(t); variable != "" {
			name += fmt.Sprintf(" %d..%d", first, last)
		}
		names = append(names, name)
	}
	return names
}
