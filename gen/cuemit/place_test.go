package cuemit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// slotted has slots of three sizes, more than it has blocks of a kind, a repeat of
// one, and a wire type that rounds staging up.
const slotted = `apiVersion: shardgen/v1alpha1
model: slotted
topology: {world: [1, 3]}
shard: {align_bytes: 32}
gather: {max_live: 5, prefetch: 4}
gradients: {reduce: bf16, slots: 3}
optimizer: {kind: sgd, momentum: f32}
blocks:
  - {name: large, params: [{name: a, shape: [100]}, {name: b, dtype: bf16, shape: [7]}]}
  - name: "h.{i}"
    repeat: {i: 7..9}
    uses: [b]
    params:
      - {name: "h.{i}.w", shape: [3, 5]}
      - {name: "h.{i}.v", dtype: f64, shape: [9]}
      - {name: "h.{i}.m", dtype: bf16, shape: [9], trainable: false}
      - {name: "h.{i}.u", dtype: f16, shape: [40]}
  - {name: "one.{i}", repeat: {i: 1}, params: [{name: "one.{i}.w", shape: [33]}]}
  - {name: none, uses: [b], params: []}
`

func TestAProgramWithTheHeaderAloneKnowsAllPlaces(t *testing.T) {
	source, err := os.ReadFile("testdata/places.cc")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*plan.Plan{"slotted": planOf(t, "slotted.yaml", slotted)}
	for _, name := range []string{"samples/tiny", "samples/tied", "samples/alldtypes", "samples/oddshapes", "models/llama-3.1-405b"} {
		all[name] = planFile(t, name+".yaml")
	}
	for name, p := range all {
		header := text(t, emit(t, p), LayoutFile)
		for w := range p.Worlds {
			if w < len(p.Worlds)-1 && name != "slotted" {
				continue // the largest is enough
			}
			ranks := strconv.FormatInt(p.Worlds[w].Ranks, 10)
			t.Run(name+"/"+ranks, func(t *testing.T) {
				t.Parallel()
				program := strings.NewReplacer("shardgen::models::tiny;", namespace(p.Spec.Package.V)+";", "World<8>", "World<"+ranks+">").Replace(string(source))
				comparePlaces(t, runPlaces(t, header, program), placesOf(p.Layout, p.Worlds[w].Placement))
			})
		}
	}
}

// runPlaces compiles a program beside a header and returns what it prints.
func runPlaces(t *testing.T, header, source string) string {
	t.Helper()
	gxx(t) // or skip
	folder := t.TempDir()
	for name, content := range map[string]string{LayoutFile: header, "places.cc": source} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	program := filepath.Join(folder, "places")
	if out, err := exec.CommandContext(ctx, "g++", "-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-o", program, filepath.Join(folder, "places.cc")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%.3000s", err, out)
	}
	out, err := exec.CommandContext(ctx, program).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func comparePlaces(t *testing.T, got, want string) {
	t.Helper()
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	if len(a) != len(b) || len(b) < 5 {
		t.Fatalf("%d lines, want %d", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("line %d is %q, want %q", i+1, a[i], b[i])
		}
	}
}

// placesOf is what testdata/places.cc prints, read from the placement.
func placesOf(m *layout.Model, p *layout.Placement) string {
	var out strings.Builder
	for _, a := range p.Arenas {
		typ := ""
		if a.DType != dtype.Invalid {
			typ = a.DType.String()
		}
		fmt.Fprintf(&out, "arena\t%s\t%s\t%d\n", a.Role, typ, a.Bytes)
	}
	for _, block := range p.Blocks {
		for b := range block.Buckets {
			bucketPlace(&out, &m.Kinds[block.Kind].Buckets[b], block.Instance, &block.Buckets[b])
		}
	}
	for s := range p.Shared {
		bucketPlace(&out, &m.Shared[s], 0, &p.Shared[s])
	}
	for _, block := range p.Blocks {
		kind := &m.Kinds[block.Kind]
		for _, g := range block.Grads {
			bucket, place := &m.Shared, p.Shared
			if !g.Shared {
				bucket, place = &kind.Buckets, block.Buckets
			}
			fmt.Fprintf(&out, "gradient\t%s\t%d\t%s\t%d\t%d\n", output.Printable(kind.Name), block.Instance, output.Printable((*bucket)[g.Bucket].Name), g.Offset, place[g.Bucket].GatheredBytes)
		}
	}
	start := int64(0)
	for slot, bytes := range p.SlotBytes {
		fmt.Fprintf(&out, "slot\t%d\t%d\t%d\n", slot, start, bytes)
		start += bytes
	}
	for buffer := range p.GradBuffer.Count {
		fmt.Fprintf(&out, "gradient buffer\t%d\t%d\t%d\n", buffer, buffer*p.GradBuffer.Bytes, p.GradBuffer.Bytes)
	}
	fmt.Fprintf(&out, "staging\t%d\t%d\nscratch\t%d\t%d\n", p.WireFull, p.WireShard, m.PartialsStart(), p.Partials)
	return out.String()
}

func bucketPlace(out *strings.Builder, b *layout.Bucket, instance int64, p *layout.Place) {
	fmt.Fprintf(out, "bucket\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", output.Printable(b.Name), instance, p.ShardElements,
		p.Shard, p.Master, p.Moments[0], p.Moments[1], p.Grad, p.Slot, p.GatheredBytes)
}

// The header has as many lines for two layers as for hundreds.
func TestTheHeaderDoesNotGrowWithLayers(t *testing.T) {
	lines := func(count string) int {
		yaml := strings.Replace(strings.Replace(slotted, "{i: 7..9}", count, 1), "max_live: 5", "max_live: 40", 1)
		return strings.Count(text(t, emit(t, planOf(t, "slotted.yaml", yaml)), LayoutFile), "\n")
	}
	if small, large := lines("{i: 10}"), lines("{i: 900}"); large > small {
		t.Errorf("%d lines for 10 layers, %d for 900", small, large)
	}
	if bytes := len(text(t, emit(t, planFile(t, "models/llama-3.1-405b.yaml")), LayoutFile)); bytes > 100<<10 {
		t.Errorf("the header of llama-3.1-405b has %d bytes", bytes)
	}
}

// A placement that the header's formulas can't say is an error, not a wrong
// offset.
func TestAPlacementThatIsNotRegularIsAnError(t *testing.T) {
	for want, breakIt := range map[string]func(*layout.Placement){
		"bucket h.{i}/f32 of instance 2 is at {ShardElements:8 Shard:256": func(p *layout.Placement) { p.Blocks[3].Buckets[0].Shard += 32 },
		"bucket h.{i}/f16 of instance 1 is at": func(p *layout.Placement) {
			for i := range 3 {
				p.Blocks[1+i].Buckets[3].Grad += 64 * int64(i)
			}
		},
		"bucket large/f32 of instance 0 is at":                                        func(p *layout.Placement) { p.Blocks[0].Buckets[0].Slot += 32 },
		"bucket h.{i}/f64 of instance 1 is at":                                        func(p *layout.Placement) { p.Blocks[2].Buckets[1].Slot += 32 },
		"bucket h.{i}/f64 of instance 2 is at":                                        func(p *layout.Placement) { p.Blocks[3].Buckets[1].GatheredBytes += 32 },
		"the block at position 2 is in slot 0, expected 2":                            func(p *layout.Placement) { p.Blocks[2].Slot = 0 },
		"the gradients of instance 1 of h.{i} are [{Shared:false Bucket:0 Offset:32}": func(p *layout.Placement) { p.Blocks[2].Grads[0].Offset += 32 },
		"the gradients of instance 2 of h.{i} are [], expected [{":                    func(p *layout.Placement) { p.Blocks[3].Grads = nil },
		"the gradients of instance 0 of none are [{Shared:true Bucket:1":              func(p *layout.Placement) { p.Blocks[5].Grads[0].Bucket++ },
		"the arenas are not those of world 1":                                         func(p *layout.Placement) { p.Arenas = p.Arenas[1:] },
	} {
		p := planOf(t, "slotted.yaml", slotted)
		breakIt(p.Worlds[1].Placement)
		_, err := Package(p)
		if err == nil || !strings.Contains(err.Error(), "CUDA: world 3: "+want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
