package importer_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shardgen/shardgen/spec"
)

func TestParserReadsAnyImport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawEntries(t)
		yaml := importEntries(t, list).YAML
		m, faults := spec.Parse("m.yaml", yaml)
		if len(faults) > 0 {
			t.Fatalf("%v\n%s", faults, yaml)
		}
		compareFlat(t, expandModel(m), flatten(list))
	})
}

func TestParserReadsWhatIsImported(t *testing.T) {
	names := []string{"llama-3-8b-lora-r16-qv", "vit-base-patch16-224", "t5-small.hub"}
	for _, m := range models {
		names = append(names, m.name)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			m, faults := spec.Parse(name+".yaml", importTable(t, name, 1, 8).YAML)
			for _, fault := range faults {
				t.Error(fault)
			}
			if m != nil {
				compareFlat(t, expandModel(m), loadTable(t, name).flat())
			}
		})
	}
}

// expandModel lists a parsed model's parameters, overrides applied.
func expandModel(m *spec.Model) []flatParam {
	var list []flatParam
	for _, b := range m.Blocks {
		repeat := spec.Repeat{}
		if b.Repeat != nil {
			repeat = *b.Repeat
		}
		for i := repeat.First; i <= repeat.Last; i++ {
			for _, p := range b.Params {
				list = append(list, expandParam(m, p, repeat.Var, i))
			}
		}
	}
	return list
}

func expandParam(m *spec.Model, p spec.Param, variable string, i int64) flatParam {
	f := flatParam{Name: spec.Expand(p.Name.V, variable, i)}
	if p.TiedTo.V != "" {
		f.TiedTo = spec.Expand(p.TiedTo.V, variable, i)
		return f
	}
	f.Shape, f.DType, f.Frozen = []int64{}, p.DType.V.String(), !p.Trainable.V
	for _, dim := range p.Shape {
		f.Shape = append(f.Shape, dim.V)
	}
	for _, o := range m.Overrides {
		if o.Trainable != nil && globMatches(o.Match.V, f.Name) {
			f.Frozen = !o.Trainable.V
		}
	}
	return f
}
