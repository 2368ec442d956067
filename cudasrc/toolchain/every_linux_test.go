package toolchain_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/internal/emulated"
)

// The kernels of all plans, from package emulated, against those that the table
// holds to their registers. It is outside of package toolchain, which emulated
// imports.
func TestTheTableHasEveryKernelThatASpecCanAskFor(t *testing.T) {
	content, err := os.ReadFile("testdata/kernels.txt")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(content)) {
		if name := strings.Fields(line)[0]; name != "#" {
			rows = append(rows, name)
		}
	}
	want := emulated.KernelNames()
	slices.Sort(want)
	if !slices.Equal(rows, want) {
		t.Errorf("the table has %d rows\n%s\nwant %d\n%s", len(rows), strings.Join(rows, " "), len(want), strings.Join(want, " "))
	}
}
