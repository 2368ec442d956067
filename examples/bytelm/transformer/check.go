package transformer

import "fmt"

// sized is a buffer and the number of elements that a Config asks of it.
type sized struct {
	name string
	data []float32
	want int
}

// Check reports the first buffer whose length is not the one that c asks for.
func (w EmbedWeights) Check(c Config) error {
	return checkAll("embedding", []sized{
		{"Wte", w.Wte, Vocab * c.Dim},
		{"Wpe", w.Wpe, c.Context * c.Dim},
	})
}

// Check reports the first buffer whose length is not the one that c asks for.
func (w BlockWeights) Check(c Config) error {
	return checkAll("block", []sized{
		{"Ln1", w.Ln1, c.Dim}, {"Ln1Bias", w.Ln1Bias, c.Dim},
		{"Qkv", w.Qkv, c.Dim * 3 * c.Dim}, {"QkvBias", w.QkvBias, 3 * c.Dim},
		{"Proj", w.Proj, c.Dim * c.Dim}, {"ProjBias", w.ProjBias, c.Dim},
		{"Ln2", w.Ln2, c.Dim}, {"Ln2Bias", w.Ln2Bias, c.Dim},
		{"Up", w.Up, c.Dim * c.Hidden}, {"UpBias", w.UpBias, c.Hidden},
		{"Down", w.Down, c.Hidden * c.Dim}, {"DownBias", w.DownBias, c.Dim},
	})
}

// Check reports the first buffer whose length is not the one that c asks for.
func (w HeadWeights) Check(c Config) error {
	return checkAll("head", []sized{
		{"LnF", w.LnF, c.Dim}, {"LnFBias", w.LnFBias, c.Dim},
		{"LmHead", w.LmHead, Vocab * c.Dim},
	})
}

func checkAll(layer string, buffers []sized) error {
	for _, b := range buffers {
		if len(b.data) != b.want {
			return fmt.Errorf("transformer: %s weight %s has %d elements, want %d: give the model and its Config the same sizes",
				layer, b.name, len(b.data), b.want)
		}
	}
	return nil
}
