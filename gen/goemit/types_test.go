package goemit

import (
	"fmt"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
)

func TestEveryElementTypeHasItsWordsInGo(t *testing.T) {
	for _, d := range dtype.All() {
		words, found := elementTypes[d]
		if !found || words.constant == "" || words.element == "" {
			t.Errorf("%s has the words %q", d, fmt.Sprint(words))
		}
	}
	if len(elementTypes) != len(dtype.All()) {
		t.Errorf("%d types have words, there are %d", len(elementTypes), len(dtype.All()))
	}
}
