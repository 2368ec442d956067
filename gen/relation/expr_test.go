package relation

import (
	"testing"

	"github.com/shardgen/shardgen/gen/constname"
)

func name(text string) Expr { return Of(constname.OfModel(text)) }

func TestExpressionsKeepTheirOrderInEveryLanguage(t *testing.T) {
	c := Syntax{Name: constname.Name.String, Ranks: "N", Wide: "LL", Break: "\n"}
	g := Syntax{Name: func(n constname.Name) string { return n.Go(8) }, Ranks: "8", Infix: true, Break: "\n"}
	a, b, shard := name("a"), name("b"), Of(constname.OfWorld("x_shard"))
	for _, x := range []struct {
		expr         Expr
		cuda, golang string
	}{
		{Add(a, b, Num(3)), "a + b + 3", "a + b + 3"},
		{Sub(a, Add(b, Num(1))), "a - (b + 1)", "a - (b + 1)"},
		{Sub(Add(a, b), Num(1)), "a + b - 1", "a + b - 1"},
		{Mul(Add(a, b), Num(2)), "(a + b) * 2", "(a + b) * 2"},
		{Mul(Num(3), Num(5), Num(7)), "3LL * 5 * 7", "3 * 5 * 7"},
		{Div(a, Mul(b, Num(2))), "a / (b * 2)", "a / (b * 2)"},
		{Mod(Add(a, Num(1)), b), "(a + 1) % b", "(a + 1) % b"},
		{Mul(a, shard, Ranks()), "a * x_shard * N", "a * x_shard_world8 * 8"},
		{Add(a, Mul(b, Num(2)), a, b), "a +\nb * 2 +\na +\nb", "a +\nb * 2 +\na +\nb"},
		{Call("largest", Add(a, b), Num(2)), "largest(a + b, 2)", "largest(a + b, 2)"},
		{RoundUp(Add(a, b), shard), "roundUp(a + b, x_shard)", "(a + b + x_shard_world8 - 1) / x_shard_world8 * x_shard_world8"},
		{Mul(CeilDiv(Div(a, b), Ranks()), b), "ceilDiv(a / b, N) * b", "(a / b + 8 - 1) / 8 * b"},
		{Sub(a, RoundUp(Num(5), b)), "a - roundUp(5, b)", "a - (5 + b - 1) / b * b"},
		{Mul(a, CeilDiv(b, Num(2))), "a * ceilDiv(b, 2)", "a * ((b + 2 - 1) / 2)"},
	} {
		if got := x.expr.Text(c); got != x.cuda {
			t.Errorf("C++: %q, want %q", got, x.cuda)
		}
		if got := x.expr.Text(g); got != x.golang {
			t.Errorf("Go: %q, want %q", got, x.golang)
		}
	}
}

func TestANoteSaysUnitFormulaAndField(t *testing.T) {
	s := Syntax{Name: constname.Name.String}
	c := Constant{Name: constname.OfModel("a"), What: "bytes"}
	if got := c.Note(s); got != "bytes" {
		t.Errorf("%q", got)
	}
	c.Formula, c.Field = RoundUp(name("b"), Num(16)), "gather"
	if got := c.Note(s); got != "bytes; roundUp(b, 16); gather" {
		t.Errorf("%q", got)
	}
}
