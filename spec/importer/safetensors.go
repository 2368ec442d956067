package importer

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// maxHeaderBytes is the longest header that the format's own reader accepts.
const maxHeaderBytes = 100_000_000

// lengthBytes is the size of the little-endian header length at the start.
const lengthBytes = 8

// metadataKey is the header's one key that is no tensor: strings by name.
const metadataKey = "__metadata__"

// safetensorsDTypes are the types of the format that a spec has too.
var safetensorsDTypes = map[string]dtype.DType{
	"F64": dtype.Float64, "F32": dtype.Float32, "BF16": dtype.BFloat16, "F16": dtype.Float16,
	"F8_E4M3": dtype.Float8E4M3, "F8_E5M2": dtype.Float8E5M2,
	"I8": dtype.Int8, "I16": dtype.Int16, "I32": dtype.Int32, "I64": dtype.Int64,
	"U8": dtype.Uint8, "U16": dtype.Uint16, "U32": dtype.Uint32, "U64": dtype.Uint64,
	"BOOL": dtype.Bool,
}

// Header is the header of a safetensors file.
type Header struct {
	Tensors   []Tensor          // in the order of their data
	Metadata  map[string]string // the key __metadata__; nil if absent
	DataBytes int64             // length of the data behind the header
}

// Tensor is an entry of a header. Begin and End are bytes from the start of the
// data, End not included; they are equal for a tensor without elements.
type Tensor struct {
	Name       string
	DType      dtype.DType
	Shape      []int64
	Begin, End int64
}

// ReadHeader reads the header of a safetensors file of size bytes and checks all
// that it claims: lengths against the size before anything is allocated, names
// that come twice, dtypes, shapes, and that the tensors tile the data without a
// hole, an overlap or a rest. With headerOnly the data may be missing or cut.
func ReadHeader(r io.ReaderAt, size int64, headerOnly bool) (*Header, error) {
	text, err := headerText(r, size)
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(text)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	if err := h.checkTiling(); err != nil {
		return nil, err
	}
	return h, h.checkSize(size-lengthBytes-int64(len(text)), headerOnly)
}

func headerText(r io.ReaderAt, size int64) ([]byte, error) {
	if size < lengthBytes {
		return nil, fmt.Errorf("safetensors: the file has %d bytes: expected at least %d", size, lengthBytes)
	}
	var prefix [lengthBytes]byte
	if got, err := r.ReadAt(prefix[:], 0); got < len(prefix) {
		return nil, fmt.Errorf("safetensors: reading the header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	switch {
	case n > uint64(size-lengthBytes):
		return nil, fmt.Errorf("safetensors: header length %d: the file has only %d bytes behind it", n, size-lengthBytes)
	case n > maxHeaderBytes:
		return nil, fmt.Errorf("safetensors: header length %d: expected at most %d", n, maxHeaderBytes)
	case n < 2:
		return nil, fmt.Errorf("safetensors: header length %d: expected at least 2, the length of {}", n)
	}
	text := make([]byte, n)
	if got, err := r.ReadAt(text, lengthBytes); got < len(text) {
		return nil, fmt.Errorf("safetensors: reading the header: %d of %d bytes: %w", got, n, err)
	}
	if text[0] != '{' {
		return nil, fmt.Errorf("safetensors: the header begins with %q: expected {", text[0])
	}
	return text, nil
}

func parseHeader(text []byte) (*Header, error) {
	const what = "safetensors header"
	r, err := newJSONReader(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	h := &Header{}
	err = r.object(what, func(key string) error {
		if key == metadataKey {
			return h.readMetadata(r)
		}
		t, err := readTensor(r, key)
		h.Tensors = append(h.Tensors, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, r.end(what)
}

func (h *Header) readMetadata(r *jsonReader) error {
	h.Metadata = map[string]string{}
	return r.object(metadataKey, func(key string) (err error) {
		h.Metadata[key], err = r.str(fmt.Sprintf("%s %q", metadataKey, key))
		return err
	})
}

func readTensor(r *jsonReader, name string) (Tensor, error) {
	what := fmt.Sprintf("tensor %q", name)
	t := Tensor{Name: name}
	var typeName string
	var offsets []int64
	err := r.object(what, func(key string) (err error) {
		switch key {
		case "dtype":
			typeName, err = r.str(what + " dtype")
		case "shape":
			t.Shape, err = r.counts(what + " shape")
		case "data_offsets":
			offsets, err = r.counts(what + " data_offsets")
		default:
			err = fmt.Errorf("%s: unknown key %q: expected dtype, shape and data_offsets", what, key)
		}
		return err
	})
	if err != nil {
		return t, err
	}
	if t.Shape == nil {
		return t, fmt.Errorf("%s: the key shape is missing", what)
	}
	if t.DType, err = tensorDType(name, typeName); err != nil {
		return t, err
	}
	return t, t.setRange(offsets)
}

func tensorDType(name, typeName string) (dtype.DType, error) {
	if typeName == "" {
		return dtype.Invalid, fmt.Errorf("tensor %q: the key dtype is missing", name)
	}
	d, ok := safetensorsDTypes[typeName]
	if !ok {
		return d, fmt.Errorf("tensor %q: dtype %s is not supported: convert the tensor, or leave it out of the file", name, printable(typeName))
	}
	return d, nil
}

// setRange checks data_offsets against the size that shape and dtype give.
func (t *Tensor) setRange(offsets []int64) error {
	if len(offsets) != 2 {
		return fmt.Errorf("tensor %q: data_offsets has %d numbers: expected 2, begin and end", t.Name, len(offsets))
	}
	_, bytes, err := tensorBytes(t.Name, t.Shape, t.DType)
	if err != nil {
		return err
	}
	t.Begin, t.End = offsets[0], offsets[1]
	if t.End < t.Begin {
		return fmt.Errorf("tensor %q: data_offsets [%d, %d] end before they begin", t.Name, t.Begin, t.End)
	}
	if t.End-t.Begin != bytes {
		return fmt.Errorf("tensor %q: data_offsets [%d, %d] hold %d bytes: shape %s of %s needs %d",
			t.Name, t.Begin, t.End, t.End-t.Begin, shapeText(t.Shape), t.DType, bytes)
	}
	return nil
}

// checkTiling makes sure that the sorted tensors lie one behind the other.
func (h *Header) checkTiling() error {
	end, last := int64(0), "the start of the data"
	for _, t := range h.Tensors {
		if t.Begin < end {
			return fmt.Errorf("tensor %q begins at byte %d, inside %s, which ends at %d", t.Name, t.Begin, last, end)
		}
		if t.Begin > end {
			return fmt.Errorf("tensor %q begins at byte %d: a hole of %d bytes lies behind %s", t.Name, t.Begin, t.Begin-end, last)
		}
		end, last = t.End, fmt.Sprintf("tensor %q", t.Name)
	}
	h.DataBytes = end
	return nil
}

// checkSize compares the data with what the file holds behind its header.
func (h *Header) checkSize(found int64, headerOnly bool) error {
	if found > h.DataBytes {
		return fmt.Errorf("safetensors: %d bytes are left over behind the last tensor, which ends at %d", found-h.DataBytes, h.DataBytes)
	}
	if found < h.DataBytes && !headerOnly {
		return fmt.Errorf("safetensors: the tensors need %d bytes of data, the file has %d: "+
			"the file is cut, or it is a bare header (then say header-only)", h.DataBytes, found)
	}
	return nil
}
