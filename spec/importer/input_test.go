package importer_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/spec/importer"
)

const (
	shard1 = "model-00001-of-00002.safetensors"
	shard2 = "model-00002-of-00002.safetensors"
	index  = `{"metadata": {"total_size": 12}, "weight_map": {
		"wte.w": "` + shard1 + `", "h.0.w": "` + shard1 + `", "h.1.w": "` + shard2 + `"}}`
)

func shardFiles() []importer.File {
	return []importer.File{
		importer.NewFile("dir/"+shard2, safetensors(`{`+f32("h.1.w", "[1]", "[0,4]")+`}`, 4)),
		importer.NewFile("dir/"+shard1, safetensors(`{`+f32("h.0.w", "[1]", "[0,4]")+`,`+f32("wte.w", "[1]", "[4,8]")+`}`, 8)),
	}
}

func TestIndexAndShardsBecomeOneModel(t *testing.T) {
	files := append(shardFiles(), importer.NewFile("dir/model.safetensors.index.json", []byte(index)))
	r := importFiles(t, importer.Options{Model: "tiny"}, files...)
	if got, want := blockNames(t, r.YAML), []string{"wte", "h.{i} 0..1"}; !slices.Equal(got, want) {
		t.Errorf("blocks are %q, want %q", got, want)
	}
	if want := "# Imported from model.safetensors.index.json and the headers of its 2 files.\n"; !strings.Contains(string(r.YAML), want) {
		t.Errorf("the spec does not say %q:\n%s", want, r.YAML)
	}
	without := importFiles(t, importer.Options{Model: "tiny"}, shardFiles()...)
	if got := blockNames(t, without.YAML); !slices.Equal(got, []string{"wte", "h.{i} 0..1"}) {
		t.Errorf("without the index blocks are %q", got)
	}
}

func TestShardNamesAreThoseOfTheIndex(t *testing.T) {
	names, err := importer.ShardNames([]byte(index))
	if err != nil || !slices.Equal(names, []string{shard1, shard2}) {
		t.Errorf("shards %q, error %v", names, err)
	}
	if !importer.IsIndex([]byte(index)) || importer.IsIndex([]byte(`{"params":[]}`)) || importer.IsIndex([]byte(`{`)) {
		t.Error("an index is not told from other JSON")
	}
}

func TestNumbersInASortedFileAreOrderedByValue(t *testing.T) {
	list := []string{"h.0.w", "h.1.w", "h.10.w", "h.11.w", "h.2.w", "h.3.w", "h.4.w", "h.5.w", "h.6.w", "h.7.w", "h.8.w", "h.9.w", "lm_head.w", "model.norm.w", "tok_embed.w"}
	r := importFiles(t, importer.Options{}, importer.NewFile("m.safetensors", fileOf(list)))
	if got, want := blockNames(t, r.YAML), []string{"tok_embed", "h.{i} 0..11", "head"}; !slices.Equal(got, want) {
		t.Errorf("blocks are %q, want %q", got, want)
	}
}

func TestInsideALayerASortedFileKeepsItsOrder(t *testing.T) {
	list := []string{"h.0.a_head.bias", "h.0.a_head.weight", "h.0.decoder.w", "h.0.embed.w", "h.0.x.w"}
	r := importFiles(t, importer.Options{}, importer.NewFile("m.safetensors", fileOf(list)))
	var names []string
	for _, p := range expandYAML(t, r.YAML) {
		names = append(names, p.Name)
	}
	if want := []string{"h.0.a_head.weight", "h.0.a_head.bias", "h.0.decoder.w", "h.0.embed.w", "h.0.x.w"}; !slices.Equal(names, want) {
		t.Errorf("order %q, want %q", names, want)
	}
}

func TestOrderOfAnUnsortedFileIsKept(t *testing.T) {
	r := importFiles(t, importer.Options{}, importer.NewFile("m.safetensors", fileOf([]string{"z.b", "h.1.w", "h.0.w", "a.w"})))
	var names []string
	for _, p := range expandYAML(t, r.YAML) {
		names = append(names, p.Name)
	}
	if want := []string{"z.b", "h.1.w", "h.0.w", "a.w"}; !slices.Equal(names, want) {
		t.Errorf("order %q, want %q", names, want)
	}
}

// fileOf is a file of tensors without elements, whose order is that of names.
func fileOf(names []string) []byte {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = f32(name, "[0]", "[0,0]")
	}
	return safetensors(`{`+strings.Join(list, ",")+`}`, 0)
}

func TestBuffersAreToldFromParameters(t *testing.T) {
	tests := []struct {
		name, shape, dtype string
		buffer             bool
	}{
		{"h.0.attn.bias", "[1,1,4,4]", "F32", true},
		{"h.0.attn.bias", "[4]", "F32", false},
		{"patch.bias", "[1,1,4,2]", "F32", false},
		{"patch.bias", "[1,4,4,1]", "F32", false},
		{"h.0.attn.masked_bias", "[]", "F32", true},
		{"rotary.inv_freq", "[4]", "F32", true},
		{"bn.running_mean", "[4]", "F32", true},
		{"bn.num_batches_tracked", "[]", "I64", true},
		{"position_ids", "[1,4]", "I64", true},
		{"mask", "[4]", "BOOL", true},
		{"q.weight", "[4]", "I8", false},
		{"q.qweight", "[4]", "I32", false},
		{"q.weight", "[4]", "F8_E4M3", false},
	}
	size := map[string]int{"F32": 4, "I64": 8, "BOOL": 1, "I8": 1, "I32": 4, "F8_E4M3": 1}
	elements := map[string]int{"[1,1,4,4]": 16, "[4]": 4, "[1,1,4,2]": 8, "[1,4,4,1]": 16, "[]": 1, "[1,4]": 4}
	for _, tt := range tests {
		end := size[tt.dtype] * elements[tt.shape]
		header := `{"` + tt.name + `":{"dtype":"` + tt.dtype + `","shape":` + tt.shape + `,"data_offsets":[0,` + strconv.Itoa(end) + `]},` +
			f32("w", "[0]", "["+strconv.Itoa(end)+","+strconv.Itoa(end)+"]") + `}`
		r := importFiles(t, importer.Options{}, importer.NewFile("m.safetensors", safetensors(header, end)))
		left := strings.Contains(strings.Join(r.Notes, "\n"), "left out: buffer "+tt.name)
		kept := strings.Contains(string(r.YAML), "name: "+tt.name+",")
		if left != tt.buffer || kept == tt.buffer {
			t.Errorf("%s %s %s: left out %t, kept %t", tt.name, tt.dtype, tt.shape, left, kept)
		}
	}
}

func TestWrongInputsAreRefused(t *testing.T) {
	st := func(name string, names ...string) importer.File { return importer.NewFile(name, fileOf(names)) }
	js := func(text string) importer.File { return importer.NewFile("t.json", []byte(text)) }
	indexFile := js(index)
	tests := []struct {
		name  string
		o     importer.Options
		files []importer.File
		want  string
	}{
		{"no files", importer.Options{}, nil, "no files to import"},
		{"unknown ending", importer.Options{}, []importer.File{importer.NewFile("a.bin", nil)}, "a.bin: unknown kind of file"},
		{"world of zero", importer.Options{World: []int64{0}}, []importer.File{js(`{}`)}, "world size 0: expected at least 1"},
		{"world twice", importer.Options{World: []int64{8, 1, 8}}, []importer.File{js(`{}`)}, "world size 8 is given twice"},
		{"two tables", importer.Options{}, []importer.File{js(`{}`), js(`{}`)}, "expected one table or index"},
		{"table and checkpoint", importer.Options{}, []importer.File{js(`{"params":[]}`), st("a.safetensors", "w")}, "import one of them"},
		{"neither table nor index", importer.Options{}, []importer.File{js(`{"x":1}`)}, "t.json: neither an index"},
		{"no JSON", importer.Options{}, []importer.File{js(`x`)}, "t.json: the file: invalid character"},
		{"no gzip", importer.Options{}, []importer.File{importer.NewFile("t.json.gz", []byte("x"))}, "t.json.gz: unpacking"},
		{"no parameters", importer.Options{}, []importer.File{js(`{"params":[]}`)}, "the input has no parameters"},
		{"buffers only", importer.Options{}, []importer.File{st("a.safetensors", "position_ids")}, "the input has no parameters"},
		{"empty name", importer.Options{}, []importer.File{st("a.safetensors", "")}, "empty name"},
		{"name with a lone surrogate", importer.Options{}, []importer.File{js(`{"params":[["\ud800",[1],"f32",true]]}`)}, "not valid UTF-8"},
		{"endless name", importer.Options{}, []importer.File{st("a.safetensors", strings.Repeat("0.", 1000))}, "the name has 2000 bytes: expected at most 1024"},
		{"name twice", importer.Options{}, []importer.File{js(`{"params":[["w",[1],"f32",true],["w",[1],"f32",true]]}`)}, `parameter "w" is listed twice`},
		{"key twice", importer.Options{}, []importer.File{js(`{"params":[],"params":[]}`)}, `the key "params" comes twice`},
		{"columns missing", importer.Options{}, []importer.File{js(`{"params":[["w",[1],"f32"]]}`)}, `params[0] "w": 3 columns`},
		{"too many columns", importer.Options{}, []importer.File{js(`{"params":[["w",[1],"f32",true,1]]}`)}, "more than 4 columns"},
		{"null dimension", importer.Options{}, []importer.File{js(`{"params":[["w",[null],"f32",true]]}`)}, "found null"},
		{"unknown dtype", importer.Options{}, []importer.File{js(`{"params":[["w",[1],"f8_e8m0",true]]}`)}, `parameter "w": dtype f8_e8m0 is not supported`},
		{"too large", importer.Options{}, []importer.File{js(`{"params":[["w",[4611686018427387904],"f32",true]]}`)}, "more than 2^63-1 bytes"},
		{"too large together", importer.Options{}, []importer.File{js(`{"params":[["v",[4611686018427387904],"i8",true],["w",[4611686018427387904],"i8",true]]}`)}, `reached at "w"`},
		{"wrong total", importer.Options{}, []importer.File{js(`{"total_params":3,"params":[["w",[2],"f32",true]]}`)}, "total_params is 3, the parameters add up to 2"},
		{"wrong bytes", importer.Options{}, []importer.File{js(`{"total_bytes":3,"params":[["w",[2],"f32",true]]}`)}, "total_bytes is 3, the parameters add up to 8"},
		{"tie of nothing", importer.Options{}, []importer.File{js(`{"tied":[["v","w"]],"params":[["w",[2],"f32",true]]}`)}, `the alias "v" is not among`},
		{"tie to nothing", importer.Options{}, []importer.File{js(`{"tied":[["w","v"]],"params":[["w",[2],"f32",true]]}`)}, `"w" is tied to "v", which does not exist`},
		{"tie to itself", importer.Options{}, []importer.File{js(`{"tied":[["w","w"]],"params":[["w",[2],"f32",true]]}`)}, "tied in a circle"},
		{"tie in a circle", importer.Options{}, []importer.File{js(`{"tied":[["w","v"],["v","w"]],"params":[["w",[2],"f32",true],["v",[2],"f32",true]]}`)}, "tied in a circle"},
		{"tie of two shapes", importer.Options{}, []importer.File{js(`{"tied":[["w","v"]],"params":[["w",[2],"f32",true],["v",[3],"f32",true]]}`)}, "tied parameters have one shape and dtype"},
		{"tie twice", importer.Options{}, []importer.File{js(`{"tied":[["w","v"],["w","v"]],"params":[["w",[2],"f32",true],["v",[2],"f32",true]]}`)}, "comes twice"},
		{"tie of three", importer.Options{}, []importer.File{js(`{"tied":[["w","v","u"]],"params":[]}`)}, "tied[0]: 3 names"},
		{"experts", importer.Options{}, []importer.File{st("a.safetensors", "m.layers.3.mlp.experts.0.up.weight")}, "(m.layers.{i}.mlp.experts.{e}.up.weight)"},
		{"index without shards", importer.Options{}, []importer.File{indexFile}, "shapes are unknown"},
		{"index with one shard", importer.Options{}, []importer.File{indexFile, shardFiles()[0]}, shard1 + " is missing"},
		{"shard of another index", importer.Options{}, []importer.File{indexFile, st(shard1, "wte.w", "h.0.w", "extra"), shardFiles()[0]}, `holds tensor "extra"`},
		{"tensor missing in its shard", importer.Options{}, []importer.File{indexFile, st(shard1, "wte.w"), shardFiles()[0]}, `places tensor "h.0.w" in ` + shard1},
		{"tensor in the wrong shard", importer.Options{}, []importer.File{indexFile, st(shard1, "wte.w"), st(shard2, "h.0.w", "h.1.w")}, shard2 + ` holds tensor "h.0.w"`},
		{"index names a tensor twice", importer.Options{}, []importer.File{js(`{"weight_map":{"w":"a","w":"b"}}`)}, `the key "w" comes twice`},
		{"index leads out of its folder", importer.Options{}, []importer.File{js(`{"weight_map":{"w":"../a.safetensors"}}`)}, `weight_map "w": "../a.safetensors": expected the name`},
		{"index leads nowhere", importer.Options{}, []importer.File{js(`{"weight_map":{"w":""}}`)}, `weight_map "w": "": expected the name`},
		{"tensor in two files", importer.Options{}, []importer.File{st("a.safetensors", "w"), st("b.safetensors", "w")}, `b.safetensors: tensor "w" is in a.safetensors too`},
		{"frozen braces in one layer", importer.Options{}, []importer.File{js(`{"params":[["h.0.{",[1],"f32",true],["h.1.{",[1],"f32",false],["h.2.{",[1],"f32",true]]}`)}, "which no pattern can say"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := importer.Import(tt.files, tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}
