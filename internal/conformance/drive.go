package conformance

import (
	"context"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/shardgen/shardgen/gen/plan"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// model is what all generated models have in common.
type model interface {
	Close() error
	Init(ctx context.Context, seed uint64) error
	Update(ctx context.Context, update func(*shard.Shards) error) error
}

// Opener makes a generated package's Open fit a [Package].
func Opener[M any](open func(context.Context, *shard.Rank, shard.Options) (M, error)) func(context.Context, *shard.Rank) (any, error) {
	return func(ctx context.Context, rank *shard.Rank) (any, error) { return open(ctx, rank, shard.Options{}) }
}

// tensor is a shard.Tensor of any element type.
type tensor interface {
	Name() string
	Shape() []int64
	Numel() int64
	Planned() bool
	DevicePtr() device.Addr
}

// pass is a ForwardPass or a BackwardPass.
type pass struct{ value reflect.Value }

func openPass(ctx context.Context, m model, method string) pass {
	return pass{reflect.ValueOf(m).MethodByName(method).Call([]reflect.Value{reflect.ValueOf(ctx)})[0]}
}

// view is a struct of tensors: a block's parameters or its gradients.
type view struct{ value reflect.Value }

// gather calls the pass's method for a block. It returns the parameters and, in
// a backward pass, the gradients.
func (p pass) gather(b *Block) ([]view, error) {
	method := p.value.MethodByName(plan.KindName(b.Kind))
	if !method.IsValid() {
		return nil, fmt.Errorf("%s has no method %s for block %s", p.value.Type(), plan.KindName(b.Kind), b.Name)
	}
	var arguments []reflect.Value
	if b.Repeated {
		arguments = append(arguments, reflect.ValueOf(b.Index))
	}
	results := method.Call(arguments)
	last := len(results) - 1
	if err, failed := results[last].Interface().(error); failed {
		return nil, fmt.Errorf("gather of block %s: %w", b.Name, err)
	}
	var views []view
	for _, r := range results[:last] {
		views = append(views, view{r})
	}
	return views, nil
}

func (p pass) end() error {
	err, _ := p.value.MethodByName("End").Call(nil)[0].Interface().(error)
	return err
}

// call calls a method without arguments and results: Release, Reduce, Discard.
func (v view) call(method string) { v.value.MethodByName(method).Call(nil) }

// tensors returns the exported fields in order, after checking that they are
// those that the block should have, under the names that the rule gives them.
func (v view) tensors(b *Block, fields []Field) ([]tensor, error) {
	var list []tensor
	t := v.value.Type()
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			continue
		}
		n := len(list)
		if n == len(fields) {
			return nil, fmt.Errorf("%s has a field %s more than the spec says", t, t.Field(i).Name)
		}
		if want := plan.FieldName(b.Kind, fields[n].Param); t.Field(i).Name != want {
			return nil, fmt.Errorf("field %d of %s is %s, want %s", n, t, t.Field(i).Name, want)
		}
		x, ok := v.value.Field(i).Interface().(tensor)
		if !ok {
			return nil, fmt.Errorf("field %s of %s is no tensor", t.Field(i).Name, t)
		}
		list = append(list, x)
	}
	if len(list) != len(fields) {
		return nil, fmt.Errorf("%s has %d tensors, want %d", t, len(list), len(fields))
	}
	return list, nil
}

// elementTypes maps the Go types of elements to those of the language.
var elementTypes = map[reflect.Type]dtype.DType{}

func init() {
	element[float64]()
	element[float32]()
	element[dtype.BF16]()
	element[dtype.F16]()
	element[dtype.F8E4M3]()
	element[dtype.F8E5M2]()
	element[int8]()
	element[int16]()
	element[int32]()
	element[int64]()
	element[uint8]()
	element[uint16]()
	element[uint32]()
	element[uint64]()
	element[bool]()
}

func element[T dtype.Element]() { elementTypes[reflect.TypeFor[T]()] = dtype.Of[T]() }

// elements returns a tensor's memory and its element type.
func elements(x tensor) ([]byte, dtype.DType) {
	host := reflect.ValueOf(x).MethodByName("Host").Call(nil)[0]
	t := elementTypes[host.Type().Elem()]
	return unsafe.Slice((*byte)(host.UnsafePointer()), int64(host.Len())*t.Bytes()), t
}

// behind returns the memory between a tensor that is not empty and the next one
// of its bucket.
func behind(x, next tensor) []byte {
	b, _ := elements(x)
	gap := int64(next.DevicePtr()) - int64(x.DevicePtr()) - int64(len(b))
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b))), gap)
}

func hasMethod(m model, name string) bool { return reflect.ValueOf(m).MethodByName(name).IsValid() }
