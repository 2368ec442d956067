package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/shardgen/shardgen/spec"
)

var update = flag.Bool("update", false, "write the goldens in testdata anew")

// parse reads a spec that has to be sound.
func parse(t testing.TB, path string, text []byte) *spec.Model {
	t.Helper()
	m, faults := spec.Parse(path, text)
	if len(faults) > 0 {
		t.Fatal(faults.Render())
	}
	return m
}

func parseFile(t testing.TB, path string) *spec.Model {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, filepath.Base(path), text)
}

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; after checking it, run go test with -update\n%s", path, got)
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("plan.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("plan.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func mustJSON(t testing.TB, p *Plan, world int64, rank *int64) []byte {
	t.Helper()
	text, err := p.JSON(world, rank)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func validate(t *testing.T, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(document)
}

// TestExampleFollowsTheSchema is the worked example of the JSON contract: rank 1
// of 4. In the bucket of h.0 in bf16, 21 elements of mlp.weight end at 24 and 7
// of mlp.bias at 32, which makes shards of 8: rank 1 owns 8 to 15 of the weight.
func TestExampleFollowsTheSchema(t *testing.T) {
	p := mustBuild(t, parseFile(t, "testdata/example.yaml"))
	rank := int64(1)
	text := mustJSON(t, p, 4, &rank)
	golden(t, "example.json", text)
	if err := validate(t, compileSchema(t), text); err != nil {
		t.Error(err)
	}
}

func TestSchemaRefusesWhatIsNoPlan(t *testing.T) {
	p := mustBuild(t, parseFile(t, "testdata/example.yaml"))
	text := string(mustJSON(t, p, 4, nil))
	schema := compileSchema(t)
	for name, edit := range map[string][2]string{
		"unknown field":        {`"world": 4`, `"world": 4, "size": 4`},
		"fraction":             {`"world": 4`, `"world": 4.5`},
		"negative count":       {`"padding_elements": 2`, `"padding_elements": -2`},
		"short hash":           {p.Hashes.Model, p.Hashes.Model[:31]},
		"alias with bucket":    {`"alias_of": "wte.weight"`, `"alias_of": "wte.weight", "bucket": "head/bf16"`},
		"owner without bucket": {`"bucket": "shared/wte.weight",` + "\n", "\n"},
		"missing tier":         {`"nvme"`, `"disk"`},
		"group of one":         {`"resident": false`, `"resident": false, "group_elements": 1`},
	} {
		wrong := strings.Replace(text, edit[0], edit[1], 1)
		if wrong == text {
			t.Fatalf("%s: the example has no %s", name, edit[0])
		}
		if validate(t, schema, []byte(wrong)) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
}

func TestFieldsWithoutMeaningAreAbsent(t *testing.T) {
	p := mustBuild(t, parseFile(t, "testdata/example.yaml"))
	var all struct {
		Params   []map[string]any
		Buckets  []map[string]any
		Segments *[]any
	}
	if err := json.Unmarshal(mustJSON(t, p, 4, nil), &all); err != nil {
		t.Fatal(err)
	}
	if all.Segments != nil {
		t.Error("segments without a rank")
	}
	for _, param := range all.Params {
		_, alias := param["alias_of"]
		_, bucket := param["bucket"]
		_, offset := param["offset_elements"]
		_, group := param["group_elements"]
		if alias == bucket || bucket != offset || group {
			t.Errorf("param %v", param)
		}
	}
	for _, b := range all.Buckets {
		_, block := b["block"]
		if shared := strings.HasPrefix(b["name"].(string), "shared/"); shared == block {
			t.Errorf("bucket %v", b)
		}
	}
}

func TestSegmentsOfARankWithoutElementsAreAnEmptyList(t *testing.T) {
	p := mustBuild(t, newModel([]int64{8}, blockOf("a", paramOf("w", 1, 3))))
	rank := int64(7)
	if text := mustJSON(t, p, 8, &rank); !bytes.Contains(text, []byte(`"segments": []`)) {
		t.Errorf("rank 7 of 8 owns none of 3 elements, yet\n%s", text)
	}
}

func TestWorldsAndRanksOutsideThePlanAreErrors(t *testing.T) {
	p := mustBuild(t, newModel([]int64{2}, blockOf("a", paramOf("w", 1, 3))))
	high, low := int64(2), int64(-1)
	for name, err := range map[string]error{
		"world 3": second(p.JSON(3, nil)), "rank 2": second(p.JSON(2, &high)), "rank -1": second(p.JSON(2, &low)),
		"table of world 3": p.Table(&bytes.Buffer{}, 3),
	} {
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestTableIsReadable(t *testing.T) {
	p := mustBuild(t, parseFile(t, "testdata/example.yaml"))
	var out bytes.Buffer
	if err := p.Table(&out, 4); err != nil {
		t.Fatal(err)
	}
	golden(t, "example.txt", out.Bytes())
}

// TestRealModelsArePlanned plans the specs of public models at the sizes they
// list. Their element counts are the published ones.
func TestRealModelsArePlanned(t *testing.T) {
	numels := map[string]int64{
		"gpt2": 124439808, "gpt2-xl": 1557611200, "llama-3-8b": 8030261248, "llama-3-70b": 70553706496,
		"llama-3.1-405b": 405853388800, "llama-3.2-1b": 1235814400, "t5-small": 60506624, "qwen2.5-0.5b": 494032768,
		"bert-base-uncased": 109482240,
	}
	paths, err := filepath.Glob("../../spec/models/*.yaml")
	if err != nil || len(paths) < len(numels) {
		t.Fatalf("%d models, %v", len(paths), err)
	}
	schema := compileSchema(t)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			p := mustBuild(t, parseFile(t, path))
			for w, world := range p.Layout.Worlds {
				if want := numels[name]; want != 0 && p.totals(w).Numel != want {
					t.Errorf("%d elements, want %d", p.totals(w).Numel, want)
				}
				if err := validate(t, schema, mustJSON(t, p, world, nil)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestLargeModelsArePlannedQuickly has room for a loaded machine: the plan takes
// some 30 ms.
func TestLargeModelsArePlannedQuickly(t *testing.T) {
	m := parseFile(t, "../../spec/models/llama-3.1-405b.yaml")
	best := time.Hour
	for range 3 {
		begin := time.Now()
		mustBuild(t, m, 1024)
		best = min(best, time.Since(begin))
	}
	if best > 300*time.Millisecond {
		t.Errorf("planning llama-3.1-405b at 1,024 ranks takes %v", best)
	}
}

func TestFiftyPlansAreOnePlan(t *testing.T) {
	text, err := os.ReadFile("testdata/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var first []byte
	for i := range 50 {
		got := mustJSON(t, mustBuild(t, parse(t, strings.Repeat("sub/", i%2)+"example.yaml", text)), 4, nil)
		if i == 0 {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Fatalf("plan %d differs from the first", i)
		}
	}
}
