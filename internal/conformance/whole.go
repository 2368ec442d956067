package conformance

import (
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// whole is a trainable owner as one process without shards keeps it.
type whole interface {
	set(values []float32)
	add(parts [][]byte, wire dtype.DType, divisor float64)
	forget()
	adamW(optim.AdamWStep)
	sgd(optim.SGDStep)
	squares() float64
	gradient() []byte
	master() []byte
}

func newWhole(w *Owner) whole {
	if w.Type == dtype.Float64 {
		return makeWhole[float64](w)
	}
	return makeWhole[float32](w)
}

// tensors are the whole tensors of an owner in its arithmetic type.
type tensors[F float] struct {
	owner                      *Owner
	grad, value, first, second []F
	summed                     bool
}

func makeWhole[F float](w *Owner) *tensors[F] {
	n := w.Numel
	return &tensors[F]{owner: w, grad: make([]F, n), value: make([]F, n), first: make([]F, n), second: make([]F, n)}
}

func (x *tensors[F]) set(values []float32) {
	for i, v := range values {
		x.value[i] = F(v)
	}
}

// add sums what the ranks contribute: each part is cast to the wire's type, the
// sum made in rank order and rounded to the wire's type once, divided, and added
// to what earlier reductions left.
func (x *tensors[F]) add(parts [][]byte, wire dtype.DType, divisor float64) {
	var sum []F
	for rank, part := range parts {
		sent := decode[F](convert(part, x.owner.Type, wire), wire)
		if rank == 0 {
			sum = sent
			continue
		}
		for i := range sum {
			sum[i] += sent[i]
		}
	}
	for i, s := range decode[F](encode(sum, wire), wire) {
		if quotient := s / F(divisor); x.summed {
			x.grad[i] += quotient
		} else {
			x.grad[i] = quotient
		}
	}
	x.summed = true
}

func (x *tensors[F]) forget() {
	clear(x.grad)
	x.summed = false
}

func (x *tensors[F]) adamW(s optim.AdamWStep) {
	if !x.owner.Decay {
		s = s.WithoutDecay()
	}
	switch x := any(x).(type) {
	case *tensors[float32]:
		s.Update(x.value, x.first, x.second, x.grad)
	case *tensors[float64]:
		s.Update64(x.value, x.first, x.second, x.grad)
	}
}

func (x *tensors[F]) sgd(s optim.SGDStep) {
	if !x.owner.Decay {
		s = s.WithoutDecay()
	}
	switch x := any(x).(type) {
	case *tensors[float32]:
		s.Update(x.value, x.first, x.grad)
	case *tensors[float64]:
		s.Update64(x.value, x.first, x.grad)
	}
}

func (x *tensors[F]) squares() float64 {
	sum := 0.0
	for _, g := range x.grad {
		sum += float64(g) * float64(g)
	}
	return sum
}

func (x *tensors[F]) gradient() []byte { return encode(x.grad, dtype.Of[F]()) }
func (x *tensors[F]) master() []byte   { return encode(x.value, dtype.Of[F]()) }
