package transformer

import (
	"bytes"
	"testing"
)

func TestSamplersWithOneSeedDrawTheSameTokens(t *testing.T) {
	logits := random(1, Vocab, 2)
	draw := func(seed uint64) []byte {
		s := NewSampler(seed, 0.8)
		text := make([]byte, 50)
		for i := range text {
			text[i] = s.Next(logits)
		}
		return text
	}
	if !bytes.Equal(draw(1), draw(1)) {
		t.Error("equal seeds drew different tokens")
	}
	if bytes.Equal(draw(1), draw(2)) {
		t.Error("different seeds drew the same tokens")
	}
}

func TestTokensAreDrawnByTheirProbability(t *testing.T) {
	logits := make([]float32, Vocab)
	for i := range logits {
		logits[i] = -50
	}
	logits['a'], logits['b'] = 0, 1.0986123 // odds of 1 to 3
	s, count := NewSampler(7, 1), [Vocab]int{}
	const draws = 4000
	for range draws {
		count[s.Next(logits)]++
	}
	if count['a']+count['b'] != draws || count['a'] < draws/5 || count['a'] > draws*3/10 {
		t.Errorf("drew %d times a and %d times b of %d, want about 1 to 3", count['a'], count['b'], draws)
	}
	cold := NewSampler(7, 0)
	if got := cold.Next(logits); got != 'b' {
		t.Errorf("at temperature 0 drew %q, want the likeliest, b", got)
	}
}

func TestWindowKeepsTheEndOfTheText(t *testing.T) {
	for _, test := range []struct {
		text, want string
		row        int
	}{
		{"ab", "ab\x00\x00", 1},
		{"abcd", "abcd", 3},
		{"abcdef", "cdef", 3},
	} {
		tokens := []byte("zzzz")
		if row := Window([]byte(test.text), tokens); row != test.row || string(tokens) != test.want {
			t.Errorf("Window(%q) = %q, row %d; want %q, row %d", test.text, tokens, row, test.want, test.row)
		}
	}
}
