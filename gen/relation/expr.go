package relation

import (
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
)

// Expr is an expression of constants, in 64-bit integers.
type Expr struct {
	op     operator // empty for a constant
	args   []Expr
	name   constname.Name
	number int64
}

// operator is +, -, *, / or %, number, ranks, or the name of a function.
type operator string

const (
	lines    operator = "lines" // + with each term on a line of its own
	number   operator = "number"
	ranks    operator = "ranks"   // the number of ranks of a world size
	roundUp  operator = "roundUp" // (n, unit): the least multiple of unit that is at least n
	ceilDiv  operator = "ceilDiv" // (n, d): n/d, rounded up
	theWhole          = 3         // binds tighter than any infix operator

	termsInALine = 3 // of a sum of constants; those of a longer one are on a line each
)

// Of is the value of a constant.
func Of(n constname.Name) Expr { return Expr{name: n} }

// Num is a number.
func Num(n int64) Expr { return Expr{op: number, number: n} }

// Ranks is the number of ranks of a world size.
func Ranks() Expr { return Expr{op: ranks} }

// Add is the sum of terms.
func Add(terms ...Expr) Expr { return Expr{op: "+", args: terms} }

// Sub is a - b.
func Sub(a, b Expr) Expr { return Expr{op: "-", args: []Expr{a, b}} }

// Mul is the product of factors.
func Mul(factors ...Expr) Expr { return Expr{op: "*", args: factors} }

// Div is a/b.
func Div(a, b Expr) Expr { return Expr{op: "/", args: []Expr{a, b}} }

// Mod is the rest of a/b.
func Mod(a, b Expr) Expr { return Expr{op: "%", args: []Expr{a, b}} }

// RoundUp is the least multiple of unit that is at least n.
func RoundUp(n, unit Expr) Expr { return Call(string(roundUp), n, unit) }

// CeilDiv is n/d, rounded up.
func CeilDiv(n, d Expr) Expr { return Call(string(ceilDiv), n, d) }

// Call is the value of a function, of a language that has it.
func Call(function string, args ...Expr) Expr { return Expr{op: operator(function), args: args} }

// Syntax is what languages write differently.
type Syntax struct {
	Name  func(constname.Name) string
	Ranks string // the number of ranks
	Wide  string // what makes a number that begins a product 64 bits wide
	Infix bool   // constants can't call functions: roundUp and ceilDiv are written out
	Break string // what ends a line of a long sum; empty where it is not broken
}

// Text writes an expression.
func (e Expr) Text(s Syntax) string { return e.text(s, 0) }

// text writes e, in parentheses if it binds less than an operator around it
// needs.
func (e Expr) text(s Syntax, needed int) string {
	if s.Infix {
		e = e.infix()
	}
	text, binding := e.bare(s)
	if binding < needed {
		return "(" + text + ")"
	}
	return text
}

// infix writes the functions that both languages know as what they do.
func (e Expr) infix() Expr {
	switch e.op {
	case roundUp:
		return Mul(CeilDiv(e.args[0], e.args[1]), e.args[1])
	case ceilDiv:
		return Div(Sub(Add(e.args[0], e.args[1]), Num(1)), e.args[1])
	}
	return e
}

func (e Expr) bare(s Syntax) (text string, binding int) {
	switch e.op {
	case "":
		return s.Name(e.name), theWhole
	case number:
		return strconv.FormatInt(e.number, 10), theWhole
	case ranks:
		return s.Ranks, theWhole
	case "+", "-":
		if s.Break != "" && len(e.args) > termsInALine && e.args[0].op != number {
			return e.join(s, " +"+s.Break, 1), 1
		}
		return e.join(s, " "+string(e.op)+" ", 1), 1
	case "*", "/", "%":
		text = e.join(s, " "+string(e.op)+" ", 2)
		if e.args[0].op == number {
			text = strings.Replace(text, " ", s.Wide+" ", 1)
		}
		return text, 2
	}
	return string(e.op) + "(" + e.join(s, ", ", 0) + ")", theWhole
}

// join writes the operands. Those behind the first bind tighter, because
// languages read from left to right.
func (e Expr) join(s Syntax, separator string, binding int) string {
	texts := make([]string, len(e.args))
	for i, a := range e.args {
		if i == 1 && binding > 0 {
			binding++
		}
		texts[i] = a.text(s, binding)
	}
	return strings.Join(texts, separator)
}
