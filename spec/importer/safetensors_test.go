package importer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/spec/importer"
)

// safetensors builds a file from the text of its header and zeros as data.
func safetensors(header string, dataBytes int) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	file = append(file, header...)
	return append(file, make([]byte, dataBytes)...)
}

// withLength builds a file whose first 8 bytes claim any header length.
func withLength(n uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
}

// oneTensor is the header of a tensor w with the given offsets.
func oneTensor(offsets string) string {
	return `{"w":{"dtype":"F32","shape":[1],"data_offsets":` + offsets + `}}`
}

// f32 is an entry of a header.
func f32(name, shape, offsets string) string {
	return fmt.Sprintf(`%q:{"dtype":"F32","shape":%s,"data_offsets":%s}`, name, shape, offsets)
}

func readBytes(file []byte, headerOnly bool) (*importer.Header, error) {
	return importer.ReadHeader(bytes.NewReader(file), int64(len(file)), headerOnly)
}

func TestHostileHeadersAreRefused(t *testing.T) {
	w4, w8 := f32("w", "[1]", "[0,4]"), f32("v", "[1]", "[4,8]")
	tests := []struct {
		name string
		file []byte
		want string // part of the error
	}{
		{"empty file", nil, "0 bytes: expected at least 8"},
		{"cut length", []byte{1, 0, 0}, "3 bytes: expected at least 8"},
		{"length of all ones", withLength(1<<64-1, "{}"), "header length 18446744073709551615"},
		{"length negative as int64", withLength(1<<63, "{}"), "header length 9223372036854775808"},
		{"length zero", withLength(0, "{}"), "header length 0"},
		{"length is file size plus one", withLength(11, "{}"), "header length 11: the file has only 2 bytes"},
		{"length one beyond the rest", withLength(3, "{}"), "header length 3: the file has only 2 bytes"},
		{"array", safetensors(`[]`, 0), "begins with '['"},
		{"null", safetensors(`null`, 0), "begins with 'n'"},
		{"leading space", safetensors(` {}`, 0), "begins with ' '"},
		{"tensor is a number", safetensors(`{"w":3}`, 0), `tensor "w": expected an object, found 3`},
		{"tensor is null", safetensors(`{"w":null}`, 0), `tensor "w": expected an object, found null`},
		{"no offsets", safetensors(oneTensor(`[]`), 4), `tensor "w": data_offsets has 0 numbers`},
		{"short offsets", safetensors(oneTensor(`[4]`), 4), `tensor "w": data_offsets has 1 numbers`},
		{"long offsets", safetensors(oneTensor(`[0,4,8]`), 4), `tensor "w": data_offsets has 3 numbers`},
		{"reversed offsets", safetensors(oneTensor(`[8,4]`), 8), `tensor "w": data_offsets [8, 4] end before`},
		{"negative offset", safetensors(oneTensor(`[-4,0]`), 4), "found -4"},
		{"fractional offset", safetensors(oneTensor(`[0.5,4]`), 4), "found 0.5"},
		{"offset with exponent", safetensors(oneTensor(`[0,4e0]`), 4), "found 4e0"},
		{"offset beyond int64", safetensors(oneTensor(`[0,9223372036854775808]`), 4), "found 9223372036854775808"},
		{"offset null", safetensors(oneTensor(`[null,4]`), 4), "found null"},
		{"offset string", safetensors(oneTensor(`["0",4]`), 4), `found "0"`},
		{"offsets null", safetensors(oneTensor(`null`), 4), "expected an array, found null"},
		{"offsets missing", safetensors(`{"w":{"dtype":"F32","shape":[1]}}`, 4), "data_offsets has 0 numbers"},
		{"shape missing", safetensors(`{"w":{"dtype":"F32","data_offsets":[0,4]}}`, 4), "the key shape is missing"},
		{"shape null", safetensors(`{"w":{"dtype":"F32","shape":null,"data_offsets":[0,4]}}`, 4), "expected an array, found null"},
		{"shape negative", safetensors(`{`+f32("w", "[-1]", "[0,4]")+`}`, 4), "found -1"},
		{"dtype missing", safetensors(`{"w":{"shape":[1],"data_offsets":[0,4]}}`, 4), "the key dtype is missing"},
		{"dtype is a number", safetensors(`{"w":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}`, 4), "expected a string, found 1"},
		{"unknown key", safetensors(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}}`, 4), `unknown key "extra"`},
		{"size overflows", safetensors(`{`+f32("w", "[4611686018427387904,4]", "[0,0]")+`}`, 0), "more than 2^63-1 bytes"},
		{"bytes overflow", safetensors(`{`+f32("w", "[4611686018427387904]", "[0,0]")+`}`, 0), "more than 2^63-1 bytes"},
		{"bytes overflow by one", safetensors(`{`+f32("w", "[2305843009213693952]", "[0,0]")+`}`, 0), "more than 2^63-1 bytes"},
		{"strides of an empty tensor overflow", safetensors(`{`+f32("w", "[0,9223372036854775807,9223372036854775807]", "[0,0]")+`}`, 0),
			`tensor "w": shape [0, 9223372036854775807, 9223372036854775807] of f32 has more than 2^63-1 bytes, dimensions of zero left out`},
		{"too many dimensions", safetensors(`{`+f32("w", "["+strings.Repeat("1,", 64)+"1]", "[0,4]")+`}`, 4), `tensor "w" shape: more than 64 numbers`},
		{"far too many dimensions", safetensors(`{`+f32("w", "["+strings.Repeat("1,", 100_000)+"1]", "[0,4]")+`}`, 4), `tensor "w" shape: more than 64 numbers`},
		{"far too many offsets", safetensors(oneTensor("["+strings.Repeat("1,", 100_000)+"1]"), 4), `tensor "w" data_offsets: more than 64 numbers`},
		{"range does not fit the shape", safetensors(`{`+f32("w", "[2]", "[0,4]")+`}`, 4), "hold 4 bytes: shape [2] of f32 needs 8"},
		{"same name twice", safetensors(`{`+w4+`,`+f32("w", "[1]", "[4,8]")+`}`, 8), `the key "w" comes twice`},
		{"same name after unescaping", safetensors(`{`+w4+`,"\u0077":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), `the key "w" comes twice`},
		{"same key in a tensor", safetensors(`{"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4), `tensor "w": the key "dtype" comes twice`},
		{"overlap", safetensors(`{`+w4+`,`+f32("v", "[1]", "[2,6]")+`}`, 6), `tensor "v" begins at byte 2, inside tensor "w"`},
		{"same range", safetensors(`{`+w4+`,`+f32("v", "[1]", "[0,4]")+`}`, 4), `begins at byte 0, inside tensor`},
		{"hole", safetensors(`{`+w4+`,`+f32("v", "[1]", "[8,12]")+`}`, 12), `a hole of 4 bytes lies behind tensor "w"`},
		{"hole at the start", safetensors(oneTensor(`[4,8]`), 8), "a hole of 4 bytes lies behind the start of the data"},
		{"bytes left over", safetensors(`{`+w4+`,`+w8+`}`, 9), "1 bytes are left over"},
		{"data cut", safetensors(`{`+w4+`,`+w8+`}`, 7), "need 8 bytes of data, the file has 7"},
		{"data absent", safetensors(`{`+w4+`}`, 0), "then say header-only"},
		{"JSON cut", safetensors(`{"w":{"dtype":"F32"`, 0), "the JSON ends too early"},
		{"JSON goes on", safetensors(`{}{}`, 0), "expected nothing behind the closing bracket"},
		{"zero bytes as padding", safetensors("{}\x00\x00", 0), "behind the closing bracket"},
		{"invalid UTF-8", safetensors("{\"\xff\":3}", 0), "not valid UTF-8"},
		{"metadata is an array", safetensors(`{"__metadata__":[]}`, 0), "__metadata__: expected an object"},
		{"metadata holds a number", safetensors(`{"__metadata__":{"n":1}}`, 0), `__metadata__ "n": expected a string, found 1`},
		{"metadata twice", safetensors(`{"__metadata__":{},"__metadata__":{}}`, 0), "comes twice"},
		{"deep nesting", safetensors(`{"w":`+strings.Repeat("[", 5000)+`}`, 0), "expected an object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, headerOnly := range []bool{false, true} {
				if headerOnly && strings.HasPrefix(tt.name, "data ") {
					continue // these are what header-only is for
				}
				allocated := allocatedBytes(func() {
					_, err := readBytes(tt.file, headerOnly)
					if err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("header-only %t: error %v, want %q in it", headerOnly, err, tt.want)
					}
				})
				if allocated >= 1<<20 {
					t.Errorf("header-only %t: %d bytes allocated", headerOnly, allocated)
				}
			}
		})
	}
}

func allocatedBytes(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestHeaderOfAHugeFileIsNotReadPastTheLimit(t *testing.T) {
	prefix := withLength(100_000_001, "")
	var err error
	allocated := allocatedBytes(func() {
		_, err = importer.ReadHeader(bytes.NewReader(prefix), 1<<50, false)
	})
	if err == nil || !strings.Contains(err.Error(), "expected at most 100000000") || allocated >= 1<<20 {
		t.Errorf("error %v after allocating %d bytes", err, allocated)
	}
}

func TestReadErrorsComeBack(t *testing.T) {
	file := safetensors(oneTensor(`[0,4]`), 4)
	// The file is shorter than it was when its size was asked for.
	_, err := importer.ReadHeader(bytes.NewReader(file[:20]), int64(len(file)), false)
	if !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "reading the header: 12 of") {
		t.Errorf("error %v", err)
	}
	_, err = importer.ReadHeader(bytes.NewReader(file[:3]), int64(len(file)), false)
	if !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "reading the header length") {
		t.Errorf("error %v", err)
	}
}

func TestEveryDTypeIsReadAsItselfOrRefusedByName(t *testing.T) {
	known := map[string]dtype.DType{
		"F64": dtype.Float64, "F32": dtype.Float32, "BF16": dtype.BFloat16, "F16": dtype.Float16,
		"F8_E4M3": dtype.Float8E4M3, "F8_E5M2": dtype.Float8E5M2,
		"I8": dtype.Int8, "I16": dtype.Int16, "I32": dtype.Int32, "I64": dtype.Int64,
		"U8": dtype.Uint8, "U16": dtype.Uint16, "U32": dtype.Uint32, "U64": dtype.Uint64, "BOOL": dtype.Bool,
	}
	for name, want := range known {
		end := 6 * want.Bytes()
		h, err := readBytes(safetensors(fmt.Sprintf(`{"w":{"dtype":%q,"shape":[2,3],"data_offsets":[0,%d]}}`, name, end), int(end)), false)
		if err != nil || h.Tensors[0].DType != want {
			t.Errorf("%s: %v, %+v", name, err, h)
		}
	}
	for _, name := range []string{"F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3", "F6_E3M2", "C64", "I4", "f32", "F8"} {
		_, err := readBytes(safetensors(fmt.Sprintf(`{"w":{"dtype":%q,"shape":[3],"data_offsets":[0,3]}}`, name), 3), false)
		if err == nil || !strings.Contains(err.Error(), "dtype "+name+" is not supported") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestValidHeadersAreRead(t *testing.T) {
	header := `{"__metadata__":{"format":"pt"},` +
		f32("b", "[]", "[8,12]") + `,` + f32("e", "[0]", "[0,0]") + `,` + f32("e2", "[2,0]", "[8,8]") + `,` +
		f32("e3", "[0]", "[12,12]") + `,` + f32("e4", "[2,0]", "[12,12]") + `,` + f32("a", "[2,1]", "[0,8]") + `}   `
	h, err := readBytes(safetensors(header, 12), false)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, tensor := range h.Tensors {
		order = append(order, fmt.Sprint(tensor.Name, tensor.Shape))
	}
	want := []string{"e[0]", "a[2 1]", "e2[2 0]", "b[]", "e3[0]", "e4[2 0]"}
	if !reflect.DeepEqual(order, want) || h.DataBytes != 12 || h.Metadata["format"] != "pt" {
		t.Errorf("tensors %q, %d bytes, metadata %v", order, h.DataBytes, h.Metadata)
	}
	bare := safetensors(header, 12)
	for cut := 1; cut <= 12; cut++ {
		if _, err := readBytes(bare[:len(bare)-cut], true); err != nil {
			t.Errorf("header-only, %d bytes of data cut: %v", cut, err)
		}
	}
}

func FuzzImport(f *testing.F) {
	f.Add(safetensors(oneTensor(`[0,4]`), 4))
	f.Add(safetensors(`{"h.0.a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"h.1.a":{"dtype":"I8","shape":[0],"data_offsets":[4,4]}}`, 4))
	f.Add([]byte(`{"params":[["h.0.w",[1],"f32",true],["h.1.w",[1],"f32",false]],"tied":[["h.1.w","h.0.w"]]}`))
	f.Add([]byte(`{"weight_map":{"w":"a.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"a.safetensors", "a.json"} {
			r, err := importer.Import([]importer.File{importer.NewFile(name, data)}, importer.Options{HeaderOnly: true})
			if err == nil {
				expandYAML(t, r.YAML)
			}
		}
	})
}
