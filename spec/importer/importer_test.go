package importer_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/spec/importer"
)

// go test ./spec/importer -run TestModels -update rewrites spec/models.
var update = flag.Bool("update", false, "rewrite the specs of spec/models from testdata")

// models are the specs of spec/models with the worlds that they list.
var models = []struct {
	name  string
	world []int64
}{
	{"gpt2", []int64{1, 2, 3, 4, 8}},
	{"gpt2-xl", []int64{1, 2, 3, 4, 8}},
	{"bert-base-uncased", []int64{1, 2, 3, 4, 8}},
	{"t5-small", []int64{1, 2, 3, 4, 8}},
	{"llama-3.2-1b", []int64{1, 2, 3, 4, 8}},
	{"llama-3-8b", []int64{1, 2, 8, 16, 64, 512, 1024}},
	{"llama-3-70b", []int64{8, 64, 512, 1024}},
	{"llama-3.1-405b", []int64{64, 512, 1024}},
	{"qwen2.5-0.5b", []int64{1, 2, 3, 4, 8}},
	{"all-minilm-l6-v2", []int64{1, 2, 3, 4, 8}},
	{"clip-vit-base-patch32", []int64{1, 2, 3, 4, 8}},
}

// packed returns the unpacked content of a testdata file.
func packed(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func importFiles(t *testing.T, o importer.Options, files ...importer.File) importer.Result {
	t.Helper()
	r, err := importer.Import(files, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func importTable(t *testing.T, name string, world ...int64) importer.Result {
	t.Helper()
	file := importer.NewFile(name+".json", packed(t, name+".json"))
	return importFiles(t, importer.Options{World: world}, file)
}

// tableOf decodes a table without the importer.
type tableOf struct {
	TotalParams int64       `json:"total_params"`
	TotalBytes  int64       `json:"total_bytes"`
	Tied        [][2]string `json:"tied"`
	Params      [][4]any    `json:"params"`
	Buffers     [][4]any    `json:"buffers"`
}

func loadTable(t *testing.T, name string) tableOf {
	t.Helper()
	var table tableOf
	if err := json.Unmarshal(packed(t, name+".json"), &table); err != nil {
		t.Fatal(err)
	}
	return table
}

// flat returns the parameters as the spec must list them.
func (table tableOf) flat() []flatParam {
	owner := map[string]string{}
	for _, pair := range table.Tied {
		owner[pair[0]] = pair[1]
	}
	var list []flatParam
	for _, row := range table.Params {
		p := flatParam{Name: row[0].(string), TiedTo: owner[row[0].(string)]}
		if p.TiedTo == "" {
			p.DType = row[2].(string)
			p.Shape = []int64{}
			for _, n := range row[1].([]any) {
				p.Shape = append(p.Shape, int64(n.(float64)))
			}
			p.Frozen = !row[3].(bool)
		}
		list = append(list, p)
	}
	return list
}

func TestModelsAreWhatTheirTablesImport(t *testing.T) {
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			path := filepath.Join("..", "models", m.name+".yaml")
			got := importTable(t, m.name, m.world...).YAML
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
				t.Errorf("%s differs from the import of its table: run the test with -update and look at the diff", path)
			}
		})
	}
}

func TestSpecsReadBackAsTheirTables(t *testing.T) {
	names := []string{"llama-3-8b-lora-r16-qv", "vit-base-patch16-224", "t5-small.hub"}
	for _, m := range models {
		names = append(names, m.name)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			table := loadTable(t, name)
			yaml := importTable(t, name, 1).YAML
			got := expandYAML(t, yaml)
			compareFlat(t, got, table.flat())
			elements, size := flatTotals(t, got)
			if elements != table.TotalParams || size != table.TotalBytes {
				t.Errorf("read back %d parameters, %d bytes; the table has %d, %d", elements, size, table.TotalParams, table.TotalBytes)
			}
		})
	}
}

func TestHeadersHoldWhatTheTablesSay(t *testing.T) {
	for header, table := range map[string]string{
		"all-minilm-l6-v2": "all-minilm-l6-v2", "qwen2.5-0.5b": "qwen2.5-0.5b", "gpt2": "gpt2",
	} {
		file := importer.NewFile("dir/"+header+".header.safetensors", packed(t, header+".header.safetensors"))
		got := expandYAML(t, importFiles(t, importer.Options{HeaderOnly: true}, file).YAML)
		want := slices.DeleteFunc(loadTable(t, table).flat(), func(p flatParam) bool { return p.TiedTo != "" })
		for i := range want {
			want[i].Name = strings.TrimPrefix(want[i].Name, "transformer.")
		}
		byName := func(a, b flatParam) int { return strings.Compare(a.Name, b.Name) }
		slices.SortFunc(got, byName)
		slices.SortFunc(want, byName)
		t.Run(header, func(t *testing.T) { compareFlat(t, got, want) })
	}
}

func TestSortedHeaderIsPutInModelOrder(t *testing.T) {
	file := importer.NewFile("gpt2.header.safetensors", packed(t, "gpt2.header.safetensors"))
	r := importFiles(t, importer.Options{HeaderOnly: true}, file)
	if got, want := blockNames(t, r.YAML), []string{"embed", "h.{i} 0..11", "ln_f"}; !slices.Equal(got, want) {
		t.Errorf("blocks are %q, want %q", got, want)
	}
	wantNote(t, r, "left out: 12 buffers, h.0.attn.bias to h.11.attn.bias, f32 [1, 1, 1024, 1024]")
	wantNote(t, r, "the file is sorted by name")
}

func wantNote(t *testing.T, r importer.Result, part string) {
	t.Helper()
	if !slices.ContainsFunc(r.Notes, func(note string) bool { return strings.Contains(note, part) }) {
		t.Errorf("no note says %q:\n%s", part, strings.Join(r.Notes, "\n"))
	}
}

func TestNotesNameTiesBuffersAndDTypes(t *testing.T) {
	r := importTable(t, "t5-small")
	wantNote(t, r, "tied: decoder.embed_tokens.weight shares the storage of shared.weight")
	wantNote(t, r, "no world size given: topology.world lists [1, 2, 4, 8]")
	r = importTable(t, "clip-vit-base-patch32", 4)
	wantNote(t, r, "left out: buffer vision_model.embeddings.position_ids, i64 [1, 50]")
	r = importTable(t, "llama-3-8b-lora-r16-qv", 4)
	wantNote(t, r, "bf16 is the default; of 419 parameters there are 291 bf16, 128 f32")
	wantNote(t, r, "frozen: 291 of the 419 parameters")
}

func TestBlocksOfRealModelsAreNamedAsATrainerWould(t *testing.T) {
	tests := map[string][]string{
		"gpt2":                   {"embed", "transformer.h.{i} 0..11", "head"},
		"bert-base-uncased":      {"embeddings", "encoder.layer.{i} 0..11", "pooler.dense"},
		"llama-3-8b":             {"model.embed_tokens", "model.layers.{i} 0..31", "head"},
		"llama-3-8b-lora-r16-qv": {"base_model.model.model.embed_tokens", "base_model.model.model.layers.{i} 0..31", "head"},
		"vit-base-patch16-224":   {"vit.embeddings", "vit.encoder.layer.{i} 0..11", "head"},
		"t5-small": {"embed", "encoder.block.0", "encoder.block.{i} 1..5", "encoder.final_layer_norm",
			"decoder.embed_tokens", "decoder.block.0", "decoder.block.{i} 1..5", "head"},
		"clip-vit-base-patch32": {"embed", "text_model.encoder.layers.{i} 0..11", "text_model.final_layer_norm",
			"vision_model.embed", "vision_model.encoder.layers.{i} 0..11", "head"},
	}
	for name, want := range tests {
		if got := blockNames(t, importTable(t, name, 1).YAML); !slices.Equal(got, want) {
			t.Errorf("%s: blocks are %q, want %q", name, got, want)
		}
	}
}

func TestImportIsDeterministic(t *testing.T) {
	first := importTable(t, "llama-3-8b-lora-r16-qv", 2)
	for range 20 {
		again := importTable(t, "llama-3-8b-lora-r16-qv", 2)
		if !bytes.Equal(first.YAML, again.YAML) || !slices.Equal(first.Notes, again.Notes) {
			t.Fatal("the same table gave two different results")
		}
	}
}

func TestFoldersAndPackingLeaveNoTraceInTheSpec(t *testing.T) {
	gz, err := os.ReadFile("testdata/gpt2.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	o := importer.Options{World: []int64{8, 1}}
	a := importFiles(t, o, importer.NewFile("/home/a/gpt2.json.gz", gz))
	b := importFiles(t, o, importer.NewFile(`C:\b\x.json`, packed(t, "gpt2.json")))
	if !bytes.Equal(a.YAML, b.YAML) {
		t.Errorf("two specs of one table:\n%.300s\n%.300s", a.YAML, b.YAML)
	}
	if !strings.Contains(string(a.YAML), "topology: {world: [1, 8]}") {
		t.Errorf("the worlds are not in ascending order:\n%.300s", a.YAML)
	}
}
