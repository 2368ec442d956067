package goemit

import (
	"fmt"
	"path/filepath"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/layout"
)

// The files of a generated package. None ends in a word that the go tool reads
// as a system, an architecture or a test.
const (
	layoutFile = output.Prefix + "layout.go"
	modelFile  = output.Prefix + "model.go"
	blocksFile = output.Prefix + "blocks.go"
)

// Package returns the Go files of the package that a plan describes, by name, for
// a package without CUDA kernels. The same plan gives the same bytes. An error
// means that the plan contradicts itself, or holds a number that Go can't write.
func Package(p *plan.Plan) ([]output.File, error) { return PackageWithKernels(p, "") }

// PackageWithKernels is Package for a package that has CUDA source with the hash
// cudaSource. It embeds the file fatbin.FileName, which has to lie beside.
func PackageWithKernels(p *plan.Plan, cudaSource string) ([]output.File, error) {
	e, err := newEmitter(p, cudaSource)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", output.Printable(p.Spec.Name.V), err)
	}
	sections := []struct {
		name string
		emit func(*jen.File) error
	}{
		{blocksFile, e.blocks},
		{layoutFile, e.layoutSection},
		{modelFile, e.model},
	}
	var files []output.File
	for _, s := range sections {
		file, err := e.file(s.name, s.emit)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", output.Printable(p.Spec.Name.V), err)
		}
		files = append(files, file)
	}
	return files, nil
}

// emitter holds what all sections of a package read.
type emitter struct {
	plan   *plan.Plan
	layout *layout.Model
	origin string // the spec's file name without its folder, fit for a comment
	names  *constname.Names
	cuda   string // hash of the CUDA source, empty without
}

func newEmitter(p *plan.Plan, cudaSource string) (*emitter, error) {
	constants, err := constname.New(p)
	if err != nil {
		return nil, err
	}
	return &emitter{plan: p, layout: p.Layout, origin: Origin(p), names: constants, cuda: cudaSource}, nil
}

// Origin returns what the headers of generated files call the spec: its file
// name without the folder, so that output does not depend on where it lies.
func Origin(p *plan.Plan) string { return output.Printable(filepath.Base(p.Spec.Path)) }

// ModelName returns what the model lines of generated files call the model.
func ModelName(p *plan.Plan) string { return output.Printable(p.Spec.Name.V) }

func (e *emitter) file(name string, emit func(*jen.File) error) (output.File, error) {
	f := newFile(e.plan.Spec.Package.V, output.Header(e.origin), output.ModelLine(ModelName(e.plan)))
	if err := emit(f); err != nil {
		return output.File{}, err
	}
	content, err := render(f, name)
	return output.File{Name: name, Content: content}, err
}

// command is what a reader runs to get the package anew.
func (e *emitter) command() string { return output.Command(e.origin) }

// bucketOf returns the bucket that a field of a kind lies in.
func (e *emitter) bucketOf(kind int, f *plan.Field) *layout.Bucket {
	if f.At.Shared {
		return &e.layout.Shared[f.At.Bucket]
	}
	return &e.layout.Kinds[kind].Buckets[f.At.Bucket]
}
