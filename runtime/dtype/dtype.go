// Package dtype names the element types of the language and holds the storage
// formats that Go lacks: bf16, f16, f8e4m3 and f8e5m2, with their conversions.
//
// It takes and gives plain slices: values one at a time ([BF16.Float32],
// [BF16FromFloat32], ...), byte buffers in bulk ([Convert]), and typed views of
// bytes ([Slice], [Bytes]). Every conversion rounds once, to nearest, ties to
// even, and a NaN stays a NaN.
//
// It is a leaf: it imports nothing of the project, and the generator and the
// runtime both read element sizes from it.
package dtype

import "fmt"

// DType is the element type of a parameter. The zero value is invalid.
type DType uint8

// The element types, named as in a spec.
const (
	Invalid DType = iota
	Float64
	Float32
	BFloat16
	Float16
	Float8E4M3
	Float8E5M2
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Bool
	end
)

// Count is the length of an array that has an element for each type, and one for
// Invalid.
const Count = int(end)

type traits struct {
	name  string
	bytes int64
	float bool
}

var table = [Count]traits{
	Invalid:    {"invalid", 0, false},
	Float64:    {"f64", 8, true},
	Float32:    {"f32", 4, true},
	BFloat16:   {"bf16", 2, true},
	Float16:    {"f16", 2, true},
	Float8E4M3: {"f8e4m3", 1, true},
	Float8E5M2: {"f8e5m2", 1, true},
	Int8:       {"i8", 1, false},
	Int16:      {"i16", 2, false},
	Int32:      {"i32", 4, false},
	Int64:      {"i64", 8, false},
	Uint8:      {"u8", 1, false},
	Uint16:     {"u16", 2, false},
	Uint32:     {"u32", 4, false},
	Uint64:     {"u64", 8, false},
	Bool:       {"bool", 1, false},
}

// All lists every element type in the order of the language reference.
func All() []DType {
	all := make([]DType, 0, Count-1)
	for d := Float64; d < end; d++ {
		all = append(all, d)
	}
	return all
}

// Parse returns the element type with the given spec name, such as "bf16".
func Parse(name string) (DType, error) {
	for d := Float64; d < end; d++ {
		if table[d].name == name {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("unknown dtype %q", name)
}

// String returns the name that a spec uses, such as "bf16".
func (d DType) String() string { return d.traits().name }

// Bytes returns the size of one element in bytes.
func (d DType) Bytes() int64 { return d.traits().bytes }

// IsFloat reports whether values of the type are floating point numbers.
func (d DType) IsFloat() bool { return d.traits().float }

// Trainable reports whether a parameter of this type can have a gradient:
// f64, f32, bf16 and f16. The f8 formats are for storage only.
func (d DType) Trainable() bool { return d >= Float64 && d <= Float16 }

func (d DType) traits() traits {
	if d < end {
		return table[d]
	}
	return table[Invalid]
}
