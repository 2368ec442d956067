package transformer

import (
	"strings"
	"testing"
)

func TestWeightsOfAnotherSizeAreRefused(t *testing.T) {
	m := randomModel(medium)
	fits := []error{m.embed.Check(medium), m.blocks[0].Check(medium), m.head.Check(medium)}
	for _, err := range fits {
		if err != nil {
			t.Errorf("weights of the right size: %v", err)
		}
	}
	longer, wider := medium, medium
	longer.Context++
	wider.Hidden += 4
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"longer context", m.embed.Check(longer), "embedding weight Wpe has 1120 elements, want 1136"},
		{"wider hidden layer", m.blocks[0].Check(wider), "block weight Up has 1024 elements, want 1088"},
		{"no head", HeadWeights{}.Check(medium), "head weight LnF has 0 elements, want 16"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", test.err, test.want)
			}
		})
	}
}
