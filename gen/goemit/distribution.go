package goemit

import (
	"fmt"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/runtime/random"
)

// distributionNames are the runtime's names of the distributions.
var distributionNames = map[random.Kind]string{
	random.Zeros: "Zeros", random.Ones: "Ones", random.Constant: "Constant",
	random.Normal: "Normal", random.TruncatedNormal: "TruncatedNormal", random.Uniform: "Uniform",
}

// distribution emits the initial values of a parameter. Numbers that are zero
// are left out, as in the spec.
func distribution(d *random.Distribution) (jen.Code, error) {
	name, ok := distributionNames[d.Kind]
	if !ok {
		return nil, fmt.Errorf("unknown distribution %v", d.Kind)
	}
	values := []jen.Code{field("Kind", jen.Qual(randomPath, name))}
	for _, n := range []struct {
		key   string
		value float64
	}{{"Value", d.Value}, {"Mean", d.Mean}, {"Std", d.Std}, {"Cut", d.Cut}, {"Low", d.Low}, {"High", d.High}} {
		literal, err := float(n.value)
		if err != nil {
			return nil, err
		}
		if !positiveZero(n.value) {
			values = append(values, field(n.key, literal))
		}
	}
	return jen.Op("&").Qual(randomPath, "Distribution").Values(values...), nil
}
