package cuemit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// visitors writes functions that name every place once.
func (e *placer) visitors() *group {
	g := newGroup("Every arena, bucket and gradient, one after another.")
	g.Functions = []string{visitor("eachArena", e.visitArenas()), visitor("eachBucket", e.visitBuckets()), visitor("eachGradient", e.visitGradients())}
	return g
}

func visitor(name string, lines []string) string {
	parameter := "Visit visit"
	if len(lines) == 0 {
		parameter = "Visit"
	}
	return fmt.Sprintf("template <class Visit>\n  static void %s(%s) {\n%s  }", name, parameter, strings.Join(lines, ""))
}

func (e *placer) visitArenas() []string {
	var lines []string
	for _, a := range e.worlds[0].Arenas {
		t := ""
		if a.DType != dtype.Invalid {
			t = a.DType.String()
		}
		lines = append(lines, fmt.Sprintf("    visit(ArenaPlace{%s, %s, %s});\n", strconv.Quote(a.Role.String()), strconv.Quote(t), constname.Arena(a)))
	}
	return lines
}

func (e *placer) visitBuckets() []string {
	var lines []string
	for k := range e.layout.Kinds {
		var body []string
		for b := range e.layout.Kinds[k].Buckets {
			body = append(body, e.visitBucket(k, &e.layout.Kinds[k].Buckets[b], &e.names.Own[k][b]))
		}
		lines = append(lines, e.eachInstance(k, body)...)
	}
	for s := range e.layout.Shared {
		lines = append(lines, e.eachInstance(constname.Shared, []string{e.visitBucket(constname.Shared, &e.layout.Shared[s], &e.names.Shared[s])})...)
	}
	return lines
}

// eachInstance puts lines into a loop over the instances of a repeated kind.
func (e *placer) eachInstance(k int, body []string) []string {
	const indent = "    "
	if !e.repeated(k) || len(body) == 0 {
		return indented(body, indent)
	}
	loop := []string{fmt.Sprintf("%sfor (long long i = 0; i < %s; i++) {\n", indent, e.names.RepeatLen(k))}
	return append(append(loop, indented(body, indent+"  ")...), indent+"}\n")
}

func indented(lines []string, by string) []string {
	for i := range lines {
		lines[i] = by + lines[i]
	}
	return lines
}

// index is the instance that a visitor names.
func (e *placer) index(k int) string {
	if e.repeated(k) {
		return "i"
	}
	return "0"
}

func (e *placer) visitBucket(k int, b *layout.Bucket, n *constname.Bucket) string {
	call := ""
	if e.repeated(k) {
		call = "(i)"
	}
	fields := []string{literal(output.Printable(b.Name)), e.index(k), n.Shard().String()}
	for i := range parts {
		if parts[i].has(e.layout, b) {
			fields = append(fields, n.Offset(parts[i].name).String()+call)
		} else {
			fields = append(fields, "-1")
		}
	}
	fields = append(fields, n.Offset(constname.SlotPart).String()+call, n.Gathered().String())
	return fmt.Sprintf("visit(BucketPlace{%s});\n", strings.Join(fields, ", "))
}

func (e *placer) visitGradients() []string {
	var lines []string
	for k := range e.layout.Kinds {
		var body []string
		for _, grad := range e.block(e.worlds[0], k).Grads {
			bucket, names := e.gradBucket(k, grad)
			body = append(body, fmt.Sprintf("visit(GradientPlace{%s, %s, %s, %s, %s});\n", literal(output.Printable(e.layout.Kinds[k].Name)), e.index(k),
				literal(output.Printable(bucket.Name)), e.gradName(k, grad), names.Gathered()))
		}
		lines = append(lines, e.eachInstance(k, body)...)
	}
	return lines
}
