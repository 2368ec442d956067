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
	Inspect(ctx context.Context, inspect func(*shard.Shards) error) error
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

// access copies elements of one type between a device and bytes of the host.
type access struct {
	dtype            dtype.DType
	read             func(context.Context, tensor) ([]byte, error)
	write            func(context.Context, tensor, []byte) error
	host             func(tensor) []byte // the tensor's memory, where that is the host's
	values, gradient func(context.Context, shard.Shard) ([]byte, error)
	setValues        func(context.Context, shard.Shard, []byte) error
}

// byTensor and byType hold an access for each element type.
var (
	byTensor = map[reflect.Type]*access{}
	byType   = map[dtype.DType]*access{}
)

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

func element[T dtype.Element]() {
	a := &access{
		dtype: dtype.Of[T](),
		read: func(ctx context.Context, x tensor) ([]byte, error) {
			list := make([]T, x.Numel())
			err := x.(shard.Tensor[T]).CopyTo(ctx, list)
			return dtype.Bytes(list), err
		},
		write: func(ctx context.Context, x tensor, b []byte) error {
			return x.(shard.Tensor[T]).CopyFrom(ctx, elementsOf[T](b))
		},
		host: func(x tensor) []byte { return dtype.Bytes(x.(shard.Tensor[T]).Host()) },
		values: func(ctx context.Context, s shard.Shard) ([]byte, error) {
			list := make([]T, s.Len)
			err := shard.ReadValues(ctx, s, list)
			return dtype.Bytes(list), err
		},
		gradient: func(ctx context.Context, s shard.Shard) ([]byte, error) {
			list := make([]T, s.Len)
			err := shard.ReadGradient(ctx, s, list)
			return dtype.Bytes(list), err
		},
		setValues: func(ctx context.Context, s shard.Shard, b []byte) error {
			return shard.WriteValues(ctx, s, elementsOf[T](b))
		},
	}
	byTensor[reflect.TypeFor[shard.Tensor[T]]()], byType[a.dtype] = a, a
}

// elementsOf copies bytes that may not be aligned to elements.
func elementsOf[T dtype.Element](b []byte) []T {
	list := make([]T, int64(len(b))/dtype.Of[T]().Bytes())
	copy(dtype.Bytes(list), b)
	return list
}

// elements copies a tensor's elements from its device.
func elements(ctx context.Context, x tensor) ([]byte, dtype.DType, error) {
	a := byTensor[reflect.TypeOf(x)]
	if a == nil {
		return nil, dtype.Invalid, fmt.Errorf("%s is a %T, of no known element type", x.Name(), x)
	}
	b, err := a.read(ctx, x)
	return b, a.dtype, err
}

func setElements(ctx context.Context, x tensor, b []byte) error {
	return byTensor[reflect.TypeOf(x)].write(ctx, x, b)
}

func values(ctx context.Context, s shard.Shard) ([]byte, error) { return byType[s.Type].values(ctx, s) }

func setValues(ctx context.Context, s shard.Shard, b []byte) error {
	return byType[s.Type].setValues(ctx, s, b)
}

func gradient(ctx context.Context, s shard.Shard) ([]byte, error) {
	return byType[s.GradType].gradient(ctx, s)
}

// reach is how a device's memory is got at.
type reach struct {
	device device.Device
	host   bool // the host addresses it
}

func reachOf(d device.Device) (reach, error) {
	m, err := d.Alloc(1)
	if err != nil {
		return reach{}, err
	}
	return reach{d, m.Host() != nil}, d.Free(m)
}

// memory is a tensor's elements on its device, with more bytes behind them.
func (r reach) memory(x tensor, more int64) device.Memory {
	a := byTensor[reflect.TypeOf(x)]
	bytes := x.Numel()*a.dtype.Bytes() + more
	if !r.host || bytes == 0 {
		return device.DeviceMemory(x.DevicePtr(), bytes)
	}
	return device.HostMemory(unsafe.Slice(unsafe.SliceData(a.host(x)), bytes))
}

// behind copies the memory between a tensor that is not empty and the next one
// of its bucket.
func (r reach) behind(ctx context.Context, x, next tensor) ([]byte, error) {
	own := x.Numel() * byTensor[reflect.TypeOf(x)].dtype.Bytes()
	gap := int64(next.DevicePtr()-x.DevicePtr()) - own
	if gap < 0 {
		return nil, fmt.Errorf("%s begins %d bytes before the end of %s", next.Name(), -gap, x.Name())
	}
	b := make([]byte, gap)
	return b, r.device.Read(ctx, b, r.memory(x, gap).Slice(own, gap))
}

func hasMethod(m model, name string) bool { return reflect.ValueOf(m).MethodByName(name).IsValid() }
