// Package importer writes the spec of a model that exists already. It takes the
// headers of safetensors files, the index of a sharded checkpoint, or a
// parameter table, and gives the YAML of a spec whose blocks, repeats, ties,
// dtypes and frozen parameters it read off the names and shapes.
//
// It does no I/O of its own: files come in as io.ReaderAt, and of a safetensors
// file only the header is read. It may import spec and the runtime's leaves.
//
// How a list of parameters becomes blocks:
//
//   - The first number that stands alone between dots and has something behind
//     it is a layer's index: "h.3.ln_1.weight" is layer 3 of the stem "h".
//     Neighbouring layers with the same parameters become one block "h.{i}"
//     with a repeat; numbers further inside stay as they are.
//   - A layer unlike its neighbours is a block of its own ("encoder.block.0"),
//     the rest of its stem are ranges. Where a stem needs two ranges, the longer
//     is called "stem.{i}" and the other "stem_0_2.{i}" after its ends.
//   - A stem without two equal layers in a row counts as layers if one of them
//     has at least four parameters. A layer that is mostly a repeat itself (a
//     stage) is taken apart the same way.
//   - What is left forms a block before the first, after the last and between
//     two repeats; the latter is cut where names turn from one stem's prefix to
//     the next stem's. Such a block is named by the longest dotted prefix that
//     its parameters share with nobody else, or else "embed" (before) and
//     "head" (after).
//
// The order of parameters is never changed, with one exception: a safetensors
// file that is sorted by name holds no order, so layers are put in numerical
// order, embeddings before and final norms and heads behind them. The most
// frequent dtype is the spec's, others are said at the parameter. Experts that
// are stored one by one are refused; a fused table of experts is a tensor like
// any other. A spec gets no init, since no input knows one.
package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// File is an input: a safetensors file, a safetensors index or a parameter
// table. Its ending (.safetensors, .json, .json.gz) and content say which.
type File struct {
	Name string // as the user wrote it; only its last element gets into the spec
	Data io.ReaderAt
	Size int64 // bytes
}

// NewFile returns a File whose content is in memory.
func NewFile(name string, data []byte) File {
	return File{Name: name, Data: bytes.NewReader(data), Size: int64(len(data))}
}

// Options says what the files cannot know.
type Options struct {
	World      []int64 // world sizes of the spec; DefaultWorld if empty
	HeaderOnly bool    // safetensors files may end behind their header
	Model      string  // the spec's model name; by default the table's or the file's
}

// DefaultWorld is what the spec lists where Options.World is empty.
var DefaultWorld = []int64{1, 2, 4, 8}

// Result is an imported model.
type Result struct {
	Model string   // name of the model in the spec
	YAML  []byte   // the spec
	Notes []string // what the user should know: left-out buffers, ties, the choice of dtype
}

// Import writes the spec of the model that files describe: one parameter table,
// or one or more safetensors files, or the index of a sharded checkpoint with
// its shards beside it. The same input gives the same bytes. Errors name the
// file and the tensor.
func Import(files []File, o Options) (Result, error) {
	world, err := worldSizes(o.World)
	if err != nil {
		return Result{}, err
	}
	src, err := read(files, o)
	if err != nil {
		return Result{}, err
	}
	if o.Model != "" {
		src.model = o.Model
	}
	if err := src.check(); err != nil {
		return Result{}, err
	}
	doc, err := newDocument(src, world)
	if err != nil {
		return Result{}, err
	}
	notes := slices.Concat(src.notes, doc.notes())
	if len(o.World) == 0 {
		notes = append(notes, fmt.Sprintf("no world size given: topology.world lists %s, change it as you need", shapeText(world)))
	}
	return Result{Model: src.model, YAML: doc.yaml(), Notes: notes}, nil
}

// worldSizes returns the sizes in ascending order.
func worldSizes(sizes []int64) ([]int64, error) {
	if len(sizes) == 0 {
		return DefaultWorld, nil
	}
	sorted := slices.Sorted(slices.Values(sizes))
	for i, n := range sorted {
		if n < 1 {
			return nil, fmt.Errorf("world size %d: expected at least 1", n)
		}
		if i > 0 && n == sorted[i-1] {
			return nil, fmt.Errorf("world size %d is given twice: name each size once", n)
		}
	}
	return sorted, nil
}

// inputs are the files, sorted by kind.
type inputs struct {
	safetensors []File
	documents   []jsonFile
}

// jsonFile is a JSON file with its content.
type jsonFile struct {
	file File
	text []byte
}

func read(files []File, o Options) (*source, error) {
	in, err := sortInputs(files)
	if err != nil {
		return nil, err
	}
	switch {
	case len(in.documents) > 1:
		return nil, fmt.Errorf("%s and %s: expected one table or index, import them one by one",
			in.documents[0].file.Name, in.documents[1].file.Name)
	case len(in.documents) == 0 && len(in.safetensors) == 0:
		return nil, errors.New("no files to import: give a safetensors file, an index or a parameter table")
	case len(in.documents) == 0:
		return readCheckpoint(in.safetensors, nil, o)
	}
	return readDocument(in, o)
}

func readDocument(in inputs, o Options) (*source, error) {
	d := in.documents[0]
	isIndex, err := hasWeightMap(d.text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.file.Name, err)
	}
	if isIndex {
		ix, err := parseIndex(d.text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.file.Name, err)
		}
		ix.file = d.file.Name
		return readCheckpoint(in.safetensors, ix, o)
	}
	if len(in.safetensors) > 0 {
		return nil, fmt.Errorf("%s is a parameter table and %s a checkpoint: import one of them",
			d.file.Name, in.safetensors[0].Name)
	}
	src, err := parseTable(d.text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.file.Name, err)
	}
	if src.model == "" {
		src.model = modelName(d.file.Name)
	}
	return src, nil
}

func sortInputs(files []File) (inputs, error) {
	var in inputs
	for _, f := range files {
		switch {
		case strings.HasSuffix(f.Name, ".safetensors"):
			in.safetensors = append(in.safetensors, f)
		case strings.HasSuffix(f.Name, ".json"), strings.HasSuffix(f.Name, ".json.gz"):
			text, err := readJSON(f)
			if err != nil {
				return inputs{}, fmt.Errorf("%s: %w", f.Name, err)
			}
			in.documents = append(in.documents, jsonFile{f, text})
		default:
			return inputs{}, fmt.Errorf("%s: unknown kind of file: expected a name that ends in .safetensors, .json or .json.gz", f.Name)
		}
	}
	return in, nil
}
