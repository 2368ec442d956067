// Command shardvet finds mistakes in the use of generated packages that the
// compiler can't see. Use it through go vet, or on its own:
//
//	go vet -vettool=$(which shardvet) ./...
//	shardvet ./...
package main

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis/multichecker"
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/shardgen/shardgen/internal/vet"
)

func main() {
	if slices.ContainsFunc(os.Args[1:], fromGoVet) {
		unitchecker.Main(vet.Analyzers()...)
	}
	multichecker.Main(vet.Analyzers()...)
}

// fromGoVet reports whether an argument is one of those that go vet passes to
// its tool.
func fromGoVet(argument string) bool {
	return argument == "-flags" || strings.HasPrefix(argument, "-V") || strings.HasSuffix(argument, ".cfg")
}
