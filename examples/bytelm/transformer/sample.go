package transformer

import "math/rand/v2"

// Sampler draws tokens. Samplers with equal seeds draw the same ones.
type Sampler struct {
	Temperature float32 // above 0; lower is bolder

	random rand.PCG
	probs  [Vocab]float32
}

// NewSampler returns a sampler whose draws depend on nothing but the seed and
// the logits.
func NewSampler(seed uint64, temperature float32) *Sampler {
	s := &Sampler{Temperature: temperature}
	s.random.Seed(seed, 0)
	return s
}

// Next draws a token with the probabilities softmax(logits/Temperature). At a
// temperature of 0 or below it takes the likeliest.
func (s *Sampler) Next(logits []float32) byte {
	if s.Temperature <= 0 {
		return likeliest(logits)
	}
	for i, logit := range logits[:Vocab] {
		s.probs[i] = logit / s.Temperature
	}
	softmax(s.probs[:])
	rest := float32(s.random.Uint64()>>40) / (1 << 24)
	for i, p := range s.probs {
		if rest -= p; rest < 0 {
			return byte(i)
		}
	}
	return likeliest(logits) // the probabilities' sum was rounded to below the draw
}

func likeliest(logits []float32) byte {
	best := 0
	for i, logit := range logits[:Vocab] {
		if logit > logits[best] {
			best = i
		}
	}
	return byte(best)
}

// Window fills tokens, one sequence, with the end of text and returns the row of
// the text's last byte, whose logits tell what comes next. Rows after it hold
// zeros, which it does not see.
func Window(text, tokens []byte) (row int) {
	text = text[max(0, len(text)-len(tokens)):]
	n := copy(tokens, text)
	clear(tokens[n:])
	return n - 1
}
