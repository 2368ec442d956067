package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// readCheckpoint reads the headers of safetensors files, which ix (may be nil)
// binds together.
func readCheckpoint(files []File, ix *index, o Options) (*source, error) {
	if ix != nil {
		if err := ix.checkShards(files); err != nil {
			return nil, err
		}
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b File) int { return cmp.Compare(baseName(a.Name), baseName(b.Name)) })
	c := &checkpoint{ix: ix, in: map[string]string{}, sorted: true}
	for _, f := range files {
		if err := c.add(f, o.HeaderOnly); err != nil {
			return nil, err
		}
	}
	if ix != nil {
		if err := ix.checkTensors(c.in); err != nil {
			return nil, err
		}
	}
	return c.source(files), nil
}

// checkpoint collects the tensors of one or more files.
type checkpoint struct {
	ix      *index
	tensors []Tensor
	in      map[string]string // tensor -> file
	sorted  bool              // every file is sorted by name
}

func (c *checkpoint) add(f File, headerOnly bool) error {
	h, err := ReadHeader(f.Data, f.Size, headerOnly)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	file := baseName(f.Name)
	for _, t := range h.Tensors {
		if other, twice := c.in[t.Name]; twice {
			return fmt.Errorf("%s: tensor %q is in %s too: each tensor belongs to one file", f.Name, t.Name, other)
		}
		if c.ix != nil {
			if err := c.ix.checkKnown(t.Name, file); err != nil {
				return err
			}
		}
		c.in[t.Name] = file
	}
	c.sorted = c.sorted && sortedByName(h.Tensors)
	c.tensors = append(c.tensors, h.Tensors...)
	return nil
}

// sortedByName reports whether the order says nothing: the format's usual
// writer sorts by dtype, widest first, then by name.
func sortedByName(tensors []Tensor) bool {
	for i := 1; i < len(tensors); i++ {
		a, b := tensors[i-1], tensors[i]
		if a.DType == b.DType && a.Name > b.Name {
			return false
		}
	}
	return true
}

func (c *checkpoint) source(files []File) *source {
	s := &source{model: modelName(files[0].Name), origin: "the header of " + baseName(files[0].Name)}
	if c.ix != nil {
		s.model = modelName(c.ix.file)
		s.origin = fmt.Sprintf("%s and the headers of its %d files", baseName(c.ix.file), len(files))
	} else if len(files) > 1 {
		s.origin = fmt.Sprintf("the headers of %d files, %s to %s",
			len(files), baseName(files[0].Name), baseName(files[len(files)-1].Name))
	}
	for _, t := range c.tensors {
		if isBuffer(t) {
			s.buffers = append(s.buffers, buffer{t.Name, t.Shape, t.DType.String()})
			continue
		}
		s.params = append(s.params, param{name: t.Name, shape: t.Shape, dtype: t.DType})
	}
	if c.sorted {
		slices.SortStableFunc(s.params, func(a, b param) int { return compareNames(a.name, b.name) })
		s.notes = append(s.notes, "the file is sorted by name, so the order of the parameters is a guess: "+
			"embeddings, layers by number, final norms and heads")
	}
	s.notes = append(s.notes, "a safetensors file does not say what is tied or frozen: add tied_to and trainable where it applies")
	return s
}

// bufferNames are last name parts that no framework registers as parameters.
var bufferNames = map[string]bool{
	"position_ids": true, "token_type_ids": true, "inv_freq": true, "original_inv_freq": true,
	"masked_bias": true, "num_batches_tracked": true, "running_mean": true, "running_var": true,
	"relative_position_index": true, "attn_mask": true, "causal_mask": true,
}

// isBuffer recognises tensors that are no parameters by three rules: a name that
// only buffers have; integers and bool, unless the name speaks of a weight (a
// quantized one); and a bias of shape [1, 1, n, n], the causal mask of older
// attention layers.
func isBuffer(t Tensor) bool {
	parts := strings.Split(t.Name, ".")
	last := parts[len(parts)-1]
	if bufferNames[last] {
		return true
	}
	if !t.DType.IsFloat() && !strings.Contains(last, "weight") {
		return true
	}
	s := t.Shape
	return last == "bias" && len(s) == 4 && s[0] == 1 && s[1] == 1 && s[2] == s[3] && s[2] > 1
}

// compareNames orders parameters whose file is sorted by name: numbers by
// value, weight before bias, and outside of layers embeddings first, a decoder
// behind its encoder, final norms and heads last.
func compareNames(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	outside := true
	for k := range min(len(as), len(bs)) {
		if as[k] == bs[k] {
			outside = outside && !isIndex(as[k])
			continue
		}
		return cmp.Or(cmp.Compare(rank(as, k, outside), rank(bs, k, outside)),
			compareParts(as[k], bs[k]))
	}
	return cmp.Compare(len(as), len(bs))
}

func compareParts(a, b string) int {
	if isIndex(a) && isIndex(b) {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	}
	return cmp.Compare(a, b)
}

// rank is the place of a name part among its siblings.
func rank(parts []string, k int, outside bool) int {
	part := strings.ToLower(parts[k])
	switch {
	case k == len(parts)-1 && part == "weight":
		return 0
	case !outside:
		return 1
	case containsAny(part, "embed") || oneOf(part, "wte", "wpe", "shared"):
		return 0
	case containsAny(part, "head", "classifier", "pooler", "final", "ln_f") || oneOf(part, "norm", "cls", "score"):
		return 3
	case part == "decoder":
		return 2
	}
	return 1
}

func containsAny(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}

func oneOf(s string, list ...string) bool { return slices.Contains(list, s) }
