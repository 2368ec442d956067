// Package dynlibtest compares a package's table of prototypes with the header of
// the library, and with the package's calls.
//
// It is for tests, and imports runtime/internal/dynlib and the standard library.
package dynlibtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/internal/dynlib"
)

// Header returns C++ that compiles where a header declares all functions of a
// table, with the table's prototypes, and its constants have the values.
func Header(header string, table []dynlib.Prototype, constants map[string]int) string {
	b := strings.Builder{}
	fmt.Fprintf(&b, "#include <%s>\n", header)
	for _, p := range table {
		fmt.Fprintf(&b, "auto *const p_%s = %[1]s;\nextern \"C\" %s;\n", p.Symbol(), p)
	}
	for name, value := range constants {
		fmt.Fprintf(&b, "static_assert(static_cast<int>(%s) == %d, \"%[1]s\");\n", name, value)
	}
	return b.String()
}

// Compile returns what g++ says of a program, with the headers of folders.
func Compile(t *testing.T, source string, folders ...string) (output string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "check.cc")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"-std=c++17", "-fsyntax-only", path}
	for _, folder := range folders {
		arguments = append(arguments, "-isystem", folder)
	}
	out, err := exec.Command("g++", arguments...).CombinedOutput()
	return string(out), err
}

// Calls reports calls in the package of the current folder that don't pass as many
// arguments as the table says, and functions that no code uses. The package's
// names of functions are their symbols, in any case and without the suffix of a
// version; they stand before the arguments of methods call, status and within, and
// before the number of arguments of submit.
func Calls(t *testing.T, table []dynlib.Prototype) {
	t.Helper()
	c := calls{t: t, table: map[string]dynlib.Prototype{}, used: map[dynlib.Prototype]bool{}, files: token.NewFileSet()}
	for _, p := range table {
		c.table[strings.ToLower(plain(p))] = p
	}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(c.files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, c.visit)
	}
	for _, p := range table {
		if !c.used[p] {
			t.Errorf("%s is in the table, but no function uses it", p.Symbol())
		}
	}
}

// plain returns a symbol without the suffix of its version.
func plain(p dynlib.Prototype) string {
	name, _, _ := strings.Cut(p.Symbol(), "_v")
	return name
}

// calls is what is known of a package's calls.
type calls struct {
	t     *testing.T
	table map[string]dynlib.Prototype
	used  map[dynlib.Prototype]bool
	files *token.FileSet
}

// use returns the prototype that a node names.
func (c *calls) use(n ast.Node) (p dynlib.Prototype, ok bool) {
	if name, isName := n.(*ast.Ident); isName {
		p, ok = c.table[strings.ToLower(name.Name)]
		c.used[p] = c.used[p] || ok
	}
	return p, ok
}

func (c *calls) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		ast.Inspect(n, func(n ast.Node) bool { c.use(n); return true })
	case *ast.CallExpr:
		for at, argument := range n.Args {
			if p, ok := c.use(argument); ok {
				c.compare(n, p, n.Args[at+1:])
			}
		}
	}
	return true
}

// compare reports a call whose arguments are not as many as the prototype's,
// where they can be counted.
func (c *calls) compare(call *ast.CallExpr, p dynlib.Prototype, rest []ast.Expr) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || call.Ellipsis.IsValid() {
		return
	}
	found := len(rest)
	switch method.Sel.Name {
	case "call", "status", "within":
	case "submit":
		if _, err := fmt.Sscan(rest[0].(*ast.BasicLit).Value, &found); err != nil {
			c.t.Fatal(err)
		}
	default:
		return
	}
	if found != p.Arguments() {
		c.t.Errorf("%v: %s has %d arguments, the call %d", c.files.Position(call.Pos()), p.Symbol(), p.Arguments(), found)
	}
}
