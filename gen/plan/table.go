package plan

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Table writes the plan at one of its world sizes for people: totals, block
// kinds, buckets, a rank's memory, traffic, and which override set what.
func (p *Plan) Table(out io.Writer, world int64) error {
	w := p.Layout.WorldIndex(world)
	if w < 0 {
		return fmt.Errorf("world size %d is not planned, only %v", world, p.Layout.Worlds)
	}
	var text strings.Builder
	p.writeHead(&text, w)
	p.writeKinds(&text)
	p.writeBuckets(&text, w)
	p.writeMemory(&text, w)
	p.writeTraffic(&text, w)
	p.writeRules(&text)
	_, err := io.WriteString(out, text.String())
	return err
}

func (p *Plan) writeHead(out *strings.Builder, w int) {
	t := p.totals(w)
	world := &p.Worlds[w]
	fmt.Fprintf(out, "%s: %s%s, layout %s, align %d bytes\n",
		output.Printable(p.Spec.Name.V), counted(world.Ranks, "rank"), p.otherWorlds(world.Ranks), p.Spec.Shard.Layout.V, p.Layout.AlignBytes)
	fmt.Fprintf(out, "%s (%s), %s, %s, padding %.2g%%\n",
		counted(t.Params, "parameter"), counted(int64(len(p.Params)), "name"), counted(t.Numel, "element"), humanBytes(t.Bytes), t.PaddingPercent)
	fmt.Fprintf(out, "hashes: model %s, layout %s, plan %s\n", p.Hashes.Model, world.Layout, world.Plan)
}

// otherWorlds says in brackets what else may be shown, where the spec lists
// other world sizes than the given one.
func (p *Plan) otherWorlds(shown int64) string {
	var listed []string
	others, among := false, false
	for _, w := range p.Spec.Topology.Worlds {
		listed = append(listed, groupDigits(w.V))
		others, among = others || w.V != shown, among || w.V == shown
	}
	switch all := strings.Join(listed, ", "); {
	case !others:
		return ""
	case among:
		return fmt.Sprintf(" (of worlds %s; --world N shows another)", all)
	default:
		return fmt.Sprintf(" (the spec lists %s)", all)
	}
}

// counted is a number and what it counts, "1 rank" or "4 ranks".
func counted(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return groupDigits(n) + " " + noun
}

func (p *Plan) writeKinds(out *strings.Builder) {
	rows := [][]string{{"block", "Go type", "instances", "names", "own elements", "in all instances"}}
	for i := range p.Kinds {
		kind := &p.Layout.Kinds[i]
		names, each := declared(p.Kinds[i].Fields)
		rows = append(rows, []string{
			output.Printable(kind.Name), p.Kinds[i].GoName, groupDigits(kind.Count), strconv.Itoa(names),
			groupDigits(each), groupDigits(each * kind.Count),
		})
	}
	writeRows(out, 2, rows)
}

// declared counts the names that a block declares, aliases too, and the elements
// that it owns, shared ones too, so that the columns add up to the totals.
func declared(fields []Field) (names int, elements int64) {
	for i := range fields {
		f := &fields[i]
		if f.Own {
			elements += f.Numel
		}
		if f.Own || f.Name != f.Owner { // else the block uses another's parameter under its name
			names++
		}
	}
	return names, elements
}

func (p *Plan) writeBuckets(out *strings.Builder, w int) {
	rows := [][]string{{"bucket", "dtype", "times", "params", "elements", "shard", "padding", "payload"}}
	add := func(b *layout.Bucket, times int64) {
		numel, shard := bucketNumel(b), b.ShardElements[w]
		rows = append(rows, []string{
			output.Printable(b.Name), b.DType.String(), groupDigits(times), strconv.Itoa(len(b.Params)), groupDigits(numel),
			groupDigits(shard), groupDigits(shard*p.Worlds[w].Ranks - numel), humanBytes(shard * b.DType.Bytes()),
		})
	}
	for i := range p.Layout.Kinds {
		for j := range p.Layout.Kinds[i].Buckets {
			add(&p.Layout.Kinds[i].Buckets[j], p.Layout.Kinds[i].Count)
		}
	}
	for i := range p.Layout.Shared {
		add(&p.Layout.Shared[i], 1)
	}
	writeRows(out, 2, rows)
}

func (p *Plan) writeMemory(out *strings.Builder, w int) {
	placement := p.Worlds[w].Placement
	rows := [][]string{{"memory of a rank", "kept", "bytes", ""}}
	for _, a := range placement.Arenas {
		kept := "in passes"
		if a.Role.Rest() {
			kept = "always"
		}
		rows = append(rows, []string{arenaName(a), kept, groupDigits(a.Bytes), humanBytes(a.Bytes)})
	}
	rest, peak := placement.RestBytes(), placement.PeakBytes()
	rows = append(rows,
		[]string{"rest", "", groupDigits(rest), humanBytes(rest)},
		[]string{"peak", "", groupDigits(peak), humanBytes(peak)})
	writeRows(out, 2, rows)
	if budget := p.Spec.Budget; budget.Device.V > 0 {
		fmt.Fprintf(out, "budget: %s of device memory less %s in reserve\n", humanBytes(budget.Device.V), humanBytes(budget.Reserve.V))
	}
	if p.Spec.Optimizer.Kind.V == "none" {
		out.WriteString("no optimizer state is planned: optimizer is none\n")
	}
}

func (p *Plan) writeTraffic(out *strings.Builder, w int) {
	gather, reduce := p.Worlds[w].GatherBytesPerStep, p.Worlds[w].ReduceBytesPerStep
	writeRows(out, 1, [][]string{
		{"received by a rank in a step", "bytes", ""},
		{"gathers, forward and backward", groupDigits(gather), humanBytes(gather)},
		{"reductions", groupDigits(reduce), humanBytes(reduce)},
	})
}

func (p *Plan) writeRules(out *strings.Builder) {
	rows := [][]string{{"set by overrides", "key", "rule"}}
	for i := range p.Kinds {
		for _, f := range p.Kinds[i].Fields {
			for _, r := range f.Rules {
				rows = append(rows, []string{output.Printable(f.Name), r.Key, fmt.Sprintf("%q, line %d", r.Match, r.Pos.Line)})
			}
		}
	}
	if len(rows) > 1 {
		writeRows(out, 3, rows)
	}
}

// writeRows writes a table below an empty line: the first columns to the left,
// the others to the right.
func writeRows(out *strings.Builder, left int, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	out.WriteByte('\n')
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i < left {
				fmt.Fprintf(&line, "%-*s  ", widths[i], cell)
			} else {
				fmt.Fprintf(&line, "%*s  ", widths[i], cell)
			}
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

func arenaName(a layout.Arena) string {
	if a.DType == dtype.Invalid {
		return a.Role.String()
	}
	return a.Role.String() + " " + a.DType.String()
}

// groupDigits writes 1234567 as 1,234,567.
func groupDigits(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var out strings.Builder
	for i, c := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && digits[i-1] != '-' {
			out.WriteByte(',')
		}
		out.WriteRune(c)
	}
	return out.String()
}

// humanBytes writes a size with one decimal and a binary unit.
func humanBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	size, i := float64(n), 0
	for (size >= 1024 || size <= -1024) && i < len(units)-1 {
		size, i = size/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", size, units[i])
}

// exactBytes writes a size for a message that has to tell close sizes apart.
func exactBytes(n int64) string {
	return fmt.Sprintf("%s bytes (%s)", groupDigits(n), humanBytes(n))
}
