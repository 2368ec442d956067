package cuemit

import (
	"bytes"
	"fmt"
	"path/filepath"
	"text/template"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/templates"
)

// The files of a generated package.
const (
	LayoutFile  = output.Prefix + "layout.cuh"
	KernelsFile = output.Prefix + "kernels.cu"
)

var parsed = template.Must(template.ParseFS(templates.Files, "*.tmpl"))

// Package returns the CUDA files of the package that a plan describes, by name.
// The same plan gives the same bytes. An error means that the plan contradicts
// itself.
func Package(p *plan.Plan) ([]output.File, error) {
	e, err := newEmitter(p)
	var header *layoutData
	if err == nil {
		header, err = e.layoutData()
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: CUDA: %w", output.Printable(p.Spec.Name.V), err)
	}
	var files []output.File
	for _, s := range []struct {
		name, template string
		data           any
	}{
		{KernelsFile, "kernels.cu.tmpl", e.kernelsData()},
		{LayoutFile, "layout.cuh.tmpl", header},
	} {
		var b bytes.Buffer
		if err := parsed.ExecuteTemplate(&b, s.template, s.data); err != nil {
			return nil, fmt.Errorf("model %s: %s: %w", output.Printable(p.Spec.Name.V), s.name, err)
		}
		files = append(files, output.File{Name: s.name, Content: b.Bytes()})
	}
	return files, nil
}

// emitter holds what all files of a package read.
type emitter struct {
	plan   *plan.Plan
	layout *layout.Model
	names  *constname.Names
	common common
}

// common is what every template gets.
type common struct {
	Header, Model, Namespace, Command string
}

func newEmitter(p *plan.Plan) (*emitter, error) {
	constants, err := constname.New(p)
	if err != nil {
		return nil, err
	}
	// The spec's file name without its folder: output does not depend on where it
	// lies.
	origin := output.Printable(filepath.Base(p.Spec.Path))
	return &emitter{plan: p, layout: p.Layout, names: constants, common: common{
		Header: output.Header(origin), Model: output.Printable(p.Spec.Name.V), Namespace: namespace(p.Spec.Package.V),
		Command: command(origin),
	}}, nil
}

// command is output.Command, fit for a string literal.
func command(origin string) string {
	text := literal(output.Command(origin))
	return text[1 : len(text)-1]
}
