package importer

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// source is what any kind of input is read into.
type source struct {
	model   string
	origin  string // where the parameters come from, for the spec's comment
	params  []param
	buffers []buffer
	notes   []string
}

// param is a parameter by its full name.
type param struct {
	name   string
	shape  []int64
	dtype  dtype.DType
	frozen bool
	tiedTo string // empty: the parameter owns its storage
}

// buffer is a tensor of the model that is no parameter.
type buffer struct {
	name  string
	shape []int64
	dtype string
}

// trainable reports whether the parameter has a gradient if nothing is said.
func (p param) trainable() bool { return p.tiedTo == "" && p.dtype.Trainable() }

func (p param) sameStorage(q param) bool {
	return p.dtype == q.dtype && slices.Equal(p.shape, q.shape)
}

// bytes returns the size of the parameter's elements.
func (p param) bytes() (elements, bytes int64, err error) {
	return tensorBytes(p.name, p.shape, p.dtype)
}

func tensorBytes(name string, shape []int64, d dtype.DType) (elements, bytes int64, err error) {
	for _, n := range shape {
		if n < 0 {
			return 0, 0, fmt.Errorf("tensor %q: shape %s has a negative dimension", name, shapeText(shape))
		}
	}
	if elements, err = layout.Numel(nonZero(shape)); err != nil || elements > (1<<63-1)/d.Bytes() {
		return 0, 0, fmt.Errorf("tensor %q: shape %s of %s has more than 2^63-1 bytes, dimensions of zero left out", name, shapeText(shape), d)
	}
	if slices.Contains(shape, 0) {
		return 0, 0, nil
	}
	return elements, elements * d.Bytes(), nil
}

// nonZero leaves the zeros out of a shape: a spec takes an empty tensor too only
// if its strides fit.
func nonZero(shape []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(shape), func(n int64) bool { return n == 0 })
}

// check refuses what no spec can say, so that all that follows can rely on it.
func (s *source) check() error {
	if len(s.params) == 0 {
		return errors.New("the input has no parameters: nothing to write a spec of")
	}
	if err := checkName("model", s.model); err != nil {
		return err
	}
	byName := make(map[string]param, len(s.params))
	for _, p := range s.params {
		if err := checkName("parameter", p.name); err != nil {
			return err
		}
		if _, twice := byName[p.name]; twice {
			return fmt.Errorf("parameter %q is listed twice", p.name)
		}
		byName[p.name] = p
	}
	if err := refuseExperts(s.params); err != nil {
		return err
	}
	if _, err := s.totals(); err != nil {
		return err
	}
	return checkTies(s.params, byName)
}

// maxNameBytes bounds a name, and with it the depth of nested layers.
const maxNameBytes = 1024

func checkName(what, name string) error {
	if name == "" {
		return fmt.Errorf("a %s has an empty name: give it one", what)
	}
	if len(name) > maxNameBytes {
		return fmt.Errorf("%s %.40q...: the name has %d bytes: expected at most %d", what, name, len(name), maxNameBytes)
	}
	if !utf8.ValidString(name) || strings.ContainsRune(name, utf8.RuneError) {
		return fmt.Errorf("%s %q: the name is not valid UTF-8", what, name)
	}
	return nil
}

func checkTies(params []param, byName map[string]param) error {
	for _, p := range params {
		if p.tiedTo == "" {
			continue
		}
		owner, ok := byName[p.tiedTo]
		if !ok {
			return fmt.Errorf("parameter %q is tied to %q, which does not exist", p.name, p.tiedTo)
		}
		if !p.sameStorage(owner) {
			return fmt.Errorf("parameter %q, %s %s, is tied to %q, %s %s: tied parameters have one shape and dtype",
				p.name, p.dtype, shapeText(p.shape), owner.name, owner.dtype, shapeText(owner.shape))
		}
		for steps := 0; owner.tiedTo != ""; steps++ {
			if steps > len(params) {
				return fmt.Errorf("parameter %q is tied in a circle: one of the names must own the storage", p.name)
			}
			owner = byName[owner.tiedTo]
		}
	}
	return nil
}

// totals of a model; aliases count once, with their owner.
type totals struct{ tensors, elements, bytes int64 }

func (s *source) totals() (totals, error) {
	var t totals
	for _, p := range s.params {
		elements, bytes, err := p.bytes()
		if err != nil {
			return totals{}, err
		}
		if p.tiedTo != "" {
			continue
		}
		if t.bytes+bytes < 0 {
			return totals{}, fmt.Errorf("the model has more than 2^63-1 bytes, reached at %q", p.name)
		}
		t.tensors, t.elements, t.bytes = t.tensors+1, t.elements+elements, t.bytes+bytes
	}
	return t, nil
}

// refuseExperts stops at experts that are stored one by one. As blocks of a
// dense model every rank would hold and reduce all of them.
func refuseExperts(params []param) error {
	for _, p := range params {
		parts := strings.Split(p.name, ".")
		for k := 1; k < len(parts); k++ {
			if !strings.Contains(parts[k-1], "expert") || !isIndex(parts[k]) {
				continue
			}
			return fmt.Errorf("parameter %q: experts stored one by one (%s) are not imported: "+
				"import the model with fused experts, or write the block by hand", p.name, expertPattern(parts, k))
		}
	}
	return nil
}

func expertPattern(parts []string, expert int) string {
	pattern := slices.Clone(parts)
	for k, part := range parts[:expert] {
		if isIndex(part) {
			pattern[k] = "{i}"
		}
	}
	pattern[expert] = "{e}"
	return strings.Join(pattern, ".")
}

var shardSuffix = regexp.MustCompile(`-[0-9]{5,}-of-[0-9]{5,}$`)

// modelName derives a model's name from the name of its file.
func modelName(file string) string {
	name := baseName(file)
	for _, ending := range []string{".gz", ".json", ".index", ".safetensors", ".header"} {
		name = strings.TrimSuffix(name, ending)
	}
	return shardSuffix.ReplaceAllString(name, "")
}

// baseName returns the last element of a path of either separator, so that no
// folder of the user gets into a spec.
func baseName(file string) string {
	return path.Base(strings.ReplaceAll(file, `\`, "/"))
}

// shapeText writes a shape as YAML and error messages show it: [50257, 768].
func shapeText(shape []int64) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}
