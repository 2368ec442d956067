package transformer

import "fmt"

// Vocab is the number of tokens: a token is a byte.
const Vocab = 256

// Config gives a model's sizes.
type Config struct {
	Layers  int // blocks
	Dim     int // width of the residual stream
	Heads   int // attention heads; Dim/Heads is a head's width
	Context int // tokens in a sequence
	Hidden  int // width of the feed-forward part
}

// Validate reports the first size that the layers cannot work with. Widths are
// multiples of 4: where a row begins inside 16 bytes decides the order in which
// gonum adds up a dot product, and so the last bit of the result.
func (c Config) Validate() error {
	switch {
	case c.Layers < 1:
		return fmt.Errorf("transformer: Layers is %d, must be at least 1", c.Layers)
	case c.Context < 1:
		return fmt.Errorf("transformer: Context is %d, must be at least 1", c.Context)
	case c.Heads < 1:
		return fmt.Errorf("transformer: Heads is %d, must be at least 1", c.Heads)
	case c.Dim < 1 || c.Dim%(4*c.Heads) != 0:
		return fmt.Errorf("transformer: Dim is %d, must be a multiple of 4*Heads = %d", c.Dim, 4*c.Heads)
	case c.Hidden < 1 || c.Hidden%4 != 0:
		return fmt.Errorf("transformer: Hidden is %d, must be a multiple of 4", c.Hidden)
	}
	return nil
}

// headDim is the width of one attention head.
func (c Config) headDim() int { return c.Dim / c.Heads }
