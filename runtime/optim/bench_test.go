package optim

import "testing"

func BenchmarkUpdates(b *testing.B) {
	const elements = 1 << 14
	master, m, v, grad := make([]float32, elements), make([]float32, elements), make([]float32, elements), make([]float32, elements)
	for i := range grad {
		grad[i] = float32(i%97)*0.01 - 0.4
	}
	adam, err := AdamW{LR: 1e-3, WeightDecay: 0.1}.Prepare(3, 1)
	if err != nil {
		b.Fatal(err)
	}
	sgd, err := SGD{LR: 1e-3, Momentum: 0.9}.Prepare(3, 1)
	if err != nil {
		b.Fatal(err)
	}
	var norm Norm
	partials := make([]byte, PartialBytes(elements))
	for name, work := range map[string]func(){
		"AdamW": func() { adam.Update(master, m, v, grad) },
		"SGD":   func() { sgd.Update(master, m, grad) },
		"Norm":  func() { PutNorms(partials, grad); norm.AddAll(partials) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(4 * elements)
			for b.Loop() {
				work()
			}
		})
	}
}
