package goemit

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"
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

// Package returns the Go files of the package that a plan describes, by name.
// The same plan gives the same bytes. An error means that the plan contradicts
// itself, or holds a number that Go can't write.
func Package(p *plan.Plan) ([]output.File, error) {
	e, err := newEmitter(p)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", printable(p.Spec.Name.V), err)
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
			return nil, fmt.Errorf("model %s: %w", printable(p.Spec.Name.V), err)
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
	names  *names
}

func newEmitter(p *plan.Plan) (*emitter, error) {
	if len(p.Kinds) != len(p.Layout.Kinds) || len(p.Worlds) != len(p.Layout.Worlds) {
		return nil, fmt.Errorf("the plan has %d block kinds and %d worlds, but its layout %d and %d",
			len(p.Kinds), len(p.Worlds), len(p.Layout.Kinds), len(p.Layout.Worlds))
	}
	constants, err := nameConstants(p)
	if err != nil {
		return nil, err
	}
	return &emitter{plan: p, layout: p.Layout, origin: Origin(p), names: constants}, nil
}

// Origin returns what the headers of generated files call the spec: its file
// name without the folder, so that output does not depend on where it lies.
func Origin(p *plan.Plan) string { return printable(filepath.Base(p.Spec.Path)) }

func (e *emitter) file(name string, emit func(*jen.File) error) (output.File, error) {
	f := newFile(e.plan.Spec.Package.V, output.Header(e.origin))
	if err := emit(f); err != nil {
		return output.File{}, err
	}
	content, err := render(f, name)
	return output.File{Name: name, Content: content}, err
}

// command is what a reader runs to get the package anew.
func (e *emitter) command() string {
	name := e.origin
	if strings.ContainsAny(name, " '*?$&;|<>()") {
		name = strconv.Quote(name)
	}
	return "go tool shardgen generate " + name
}

// bucketOf returns the bucket that a field of a kind lies in.
func (e *emitter) bucketOf(kind int, f *plan.Field) *layout.Bucket {
	if f.At.Shared {
		return &e.layout.Shared[f.At.Bucket]
	}
	return &e.layout.Kinds[kind].Buckets[f.At.Bucket]
}

// eachBucket visits own buckets of kinds in order, then the shared ones.
func (e *emitter) eachBucket(visit func(b *layout.Bucket, n *bucketNames, instances string)) {
	for k := range e.layout.Kinds {
		instances := ""
		if e.layout.Kinds[k].Var != "" {
			instances = e.plan.Kinds[k].GoName + "Len"
		}
		for b := range e.layout.Kinds[k].Buckets {
			visit(&e.layout.Kinds[k].Buckets[b], &e.names.own[k][b], instances)
		}
	}
	for s := range e.layout.Shared {
		visit(&e.layout.Shared[s], &e.names.shared[s], "")
	}
}
