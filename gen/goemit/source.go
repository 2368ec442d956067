package goemit

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"
)

const (
	abiPath     = "github.com/shardgen/shardgen/runtime/abi"
	contextPath = "context"
	devicePath  = "github.com/shardgen/shardgen/runtime/device"
	dtypePath   = "github.com/shardgen/shardgen/runtime/dtype"
	layoutPath  = "github.com/shardgen/shardgen/runtime/layout"
	mathPath    = "math"
	optimPath   = "github.com/shardgen/shardgen/runtime/optim"
	randomPath  = "github.com/shardgen/shardgen/runtime/random"
	shardPath   = "github.com/shardgen/shardgen/runtime"
)

// newFile returns an empty file with the lines of a header and the names of all
// imports; without the names jennifer guesses them.
func newFile(packageName string, header ...string) *jen.File {
	f := jen.NewFile(packageName)
	for _, line := range header {
		f.HeaderComment(line)
	}
	f.ImportAlias(shardPath, "shard")
	for _, path := range []string{abiPath, contextPath, devicePath, dtypePath, layoutPath, mathPath, optimPath, randomPath} {
		f.ImportName(path, path[strings.LastIndex(path, "/")+1:])
	}
	return f
}

// render returns the formatted source. Jennifer's own error holds the whole
// file; only its first line is kept.
func render(f *jen.File, name string) ([]byte, error) {
	var b bytes.Buffer
	if err := f.Render(&b); err != nil {
		reason, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("%s: the emitted source is not Go: %s", name, reason)
	}
	return b.Bytes(), nil
}

// number writes an integer without the conversion that jen.Lit gives to an
// int64, and without the 32 bits that an int may have.
func number(n int64) *jen.Statement { return jen.Id(strconv.FormatInt(n, 10)) }

// float writes the shortest literal that reads back as x. Infinities and NaN
// have no literal; a negative zero would lose its sign.
func float(x float64) (*jen.Statement, error) {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return nil, fmt.Errorf("%v is not a finite number", x)
	case x == 0 && math.Signbit(x):
		return jen.Qual(mathPath, "Copysign").Call(jen.Lit(0), jen.Lit(-1)), nil
	}
	return jen.Id(strconv.FormatFloat(x, 'g', -1, 64)), nil
}

// source writes an expression that is already Go.
func source(expression string) *jen.Statement { return jen.Id(expression) }

// comment writes text as // comments, one for each of its lines. Jennifer would
// turn several lines into a /* */ comment.
func comment(text string) *jen.Statement {
	lines := strings.Split(text, "\n")
	s := jen.Comment(commentLine(lines[0]))
	for _, line := range lines[1:] {
		s.Line().Comment(commentLine(line))
	}
	return s
}

func commentLine(line string) string {
	if line == "" {
		return "//"
	}
	return "// " + line
}

// list writes a composite literal's elements on lines of their own.
func list(items []jen.Code) *jen.Statement {
	return jen.Custom(jen.Options{Open: "{", Close: "}", Separator: ",", Multi: true}, items...)
}

// field is a key and value of a composite literal. A jen.Dict would come out in
// the order of a map.
func field(key string, value jen.Code) jen.Code { return jen.Id(key).Op(":").Add(value) }

// positiveZero reports whether x is what a field that is left out holds.
func positiveZero(x float64) bool { return x == 0 && !math.Signbit(x) }

// shapeText writes a shape as the spec does: [768, 3072], and scalar for none.
func shapeText(shape []int64) string {
	if len(shape) == 0 {
		return "scalar"
	}
	dims := make([]string, len(shape))
	for i, d := range shape {
		dims[i] = strconv.FormatInt(d, 10)
	}
	return "[" + strings.Join(dims, ", ") + "]"
}
