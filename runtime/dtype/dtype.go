// Package dtype names the element types of the language and holds the storage
// formats that Go lacks: bf16, f16, f8e4m3 and f8e5m2, with their conversions.
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
	F64
	F32
	BF16Type
	F16Type
	F8E4M3Type
	F8E5M2Type
	I8
	I16
	I32
	I64
	U8
	U16
	U32
	U64
	BoolType
)

type traits struct {
	name  string
	bytes int64
	float bool
}

var table = [...]traits{
	Invalid:    {"invalid", 0, false},
	F64:        {"f64", 8, true},
	F32:        {"f32", 4, true},
	BF16Type:   {"bf16", 2, true},
	F16Type:    {"f16", 2, true},
	F8E4M3Type: {"f8e4m3", 1, true},
	F8E5M2Type: {"f8e5m2", 1, true},
	I8:         {"i8", 1, false},
	I16:        {"i16", 2, false},
	I32:        {"i32", 4, false},
	I64:        {"i64", 8, false},
	U8:         {"u8", 1, false},
	U16:        {"u16", 2, false},
	U32:        {"u32", 4, false},
	U64:        {"u64", 8, false},
	BoolType:   {"bool", 1, false},
}

// All lists every element type in the order of the language reference.
func All() []DType {
	all := make([]DType, 0, len(table)-1)
	for d := F64; int(d) < len(table); d++ {
		all = append(all, d)
	}
	return all
}

// Parse returns the element type with the given spec name, such as "bf16".
func Parse(name string) (DType, error) {
	for d := F64; int(d) < len(table); d++ {
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
func (d DType) Trainable() bool { return d >= F64 && d <= F16Type }

func (d DType) traits() traits {
	if int(d) < len(table) {
		return table[d]
	}
	return table[Invalid]
}
