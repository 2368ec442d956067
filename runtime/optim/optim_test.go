package optim

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// gradients makes n reproducible gradients of a step, of mixed size and sign.
func gradients(n int, step int64) []float64 {
	g := make([]float64, n)
	for i := range g {
		g[i] = math.Sin(float64(i)*1.7+float64(step)) * math.Ldexp(1, i%7-4)
	}
	return g
}

func toFloat32(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

// adamWOracle is the definition in f64, one element, from its first gradient on.
func adamWOracle(p, lr, beta1, beta2, eps, decay float64, grads []float64) float64 {
	var m, v float64
	for i, g := range grads {
		step := float64(i + 1)
		p -= lr * decay * p
		m = beta1*m + (1-beta1)*g
		v = beta2*v + (1-beta2)*g*g
		p -= lr * (m / (1 - math.Pow(beta1, step))) / (math.Sqrt(v/(1-math.Pow(beta2, step))) + eps)
	}
	return p
}

func TestAdamWFollowsItsDefinition(t *testing.T) {
	for _, c := range []struct {
		name                string
		o                   AdamW
		beta1, beta2, eps   float64
		gradScale, decaying float64
	}{
		{"defaults", AdamW{LR: 0.01, WeightDecay: 0.1}, 0.9, 0.999, 1e-8, 1, 0.1},
		{"given", AdamW{LR: 0.02, Beta1: 0.8, Beta2: 0.95, Eps: 1e-3}, 0.8, 0.95, 1e-3, 1, 0},
		{"small beta1", AdamW{LR: 0.02, Beta1: 0.3}, 0.3, 0.999, 1e-8, 1, 0},
		{"real zeros", AdamW{LR: 0.02, Beta1: Zero, Beta2: Zero, Eps: Zero}, 0, 0, 0, 1, 0},
		{"scaled", AdamW{LR: 0.01, Eps: 1e-2}, 0.9, 0.999, 1e-2, 0.25, 0},
		{"no rate", AdamW{WeightDecay: 0.5}, 0.9, 0.999, 1e-8, 1, 0.5},
	} {
		const n, steps = 50, 9
		p64, m64, v64 := make([]float64, n), make([]float64, n), make([]float64, n)
		p32, m32, v32 := make([]float32, n), make([]float32, n), make([]float32, n)
		history := make([][]float64, n)
		for i := range p64 {
			p64[i] = float64(i)/8 - 3
			p32[i] = float32(p64[i])
		}
		for step := int64(1); step <= steps; step++ {
			s, err := c.o.Prepare(step, c.gradScale)
			if err != nil {
				t.Fatal(err)
			}
			g := gradients(n, step)
			s.Update64(p64, m64, v64, g)
			s.Update(p32, m32, v32, toFloat32(g))
			for i := range g {
				history[i] = append(history[i], g[i]*c.gradScale)
			}
		}
		for i := range p64 {
			want := adamWOracle(float64(i)/8-3, c.o.LR, c.beta1, c.beta2, c.eps, c.decaying, history[i])
			if math.Abs(p64[i]-want) > 1e-13 || math.Abs(float64(p32[i])-want) > 3e-6 {
				t.Errorf("%s: element %d is %v in f64 and %v in f32, want %v", c.name, i, p64[i], p32[i], want)
			}
		}
	}
}

// sgdOracle follows the pseudocode in torch.optim.SGD's documentation.
func sgdOracle(p float64, o SGD, grads []float64) float64 {
	var b float64
	for i, g := range grads {
		g += o.WeightDecay * p
		if o.Momentum != 0 {
			if i == 0 {
				b = g
			} else {
				b = o.Momentum*b + (1-o.Dampening)*g
			}
			if o.Nesterov {
				g += o.Momentum * b
			} else {
				g = b
			}
		}
		p -= o.LR * g
	}
	return p
}

func TestSGDFollowsItsDefinition(t *testing.T) {
	for name, o := range map[string]SGD{
		"plain":     {LR: 0.1},
		"decay":     {LR: 0.1, WeightDecay: 0.3},
		"momentum":  {LR: 0.1, Momentum: 0.9, WeightDecay: 0.01},
		"dampening": {LR: 0.1, Momentum: 0.5, Dampening: 0.4},
		"nesterov":  {LR: 0.1, Momentum: 0.9, Nesterov: true, WeightDecay: 0.01},
	} {
		const n, steps, scale = 40, 6, 0.5
		p64, p32 := make([]float64, n), make([]float32, n)
		var b64 []float64
		var b32 []float32
		if o.Momentum != 0 {
			b64, b32 = make([]float64, n), make([]float32, n)
		}
		history := make([][]float64, n)
		for step := int64(1); step <= steps; step++ {
			s, err := o.Prepare(step, scale)
			if err != nil {
				t.Fatal(err)
			}
			g := gradients(n, step)
			s.Update64(p64, b64, g)
			s.Update(p32, b32, toFloat32(g))
			for i := range g {
				history[i] = append(history[i], g[i]*scale)
			}
		}
		for i := range p64 {
			want := sgdOracle(0, o, history[i])
			if math.Abs(p64[i]-want) > 1e-13 || math.Abs(float64(p32[i])-want) > 3e-5 {
				t.Errorf("%s: element %d is %v in f64 and %v in f32, want %v", name, i, p64[i], p32[i], want)
			}
		}
	}
}

func TestWithoutDecayLeavesParametersThatHaveNoGradient(t *testing.T) {
	adam, err := AdamW{LR: 0.1, WeightDecay: 0.5}.Prepare(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	sgd, err := SGD{LR: 0.1, WeightDecay: 0.5}.Prepare(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	plainAdam, plainSGD := adam.WithoutDecay(), sgd.WithoutDecay()
	one := func(update func(p, m, v, g []float32)) float32 {
		p := []float32{2}
		update(p, []float32{0}, []float32{0}, []float32{0})
		return p[0]
	}
	got := [4]float32{
		one(adam.Update), one(plainAdam.Update),
		one(func(p, m, _, g []float32) { sgd.Update(p, m, g) }), one(func(p, m, _, g []float32) { plainSGD.Update(p, m, g) }),
	}
	if want := [4]float32{1.9, 2, 1.9, 2}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRangesOfAShardStepLikeTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 97
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		s, err := AdamW{LR: 0.01, WeightDecay: 0.1}.Prepare(3, 0.7)
		if err != nil {
			t.Fatal(err)
		}
		g := toFloat32(gradients(n, 1))
		run := func(bounds ...int) []float32 {
			p, m, v := make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range len(bounds) - 1 {
				a, b := bounds[i], bounds[i+1]
				s.Update(p[a:b], m[a:b], v[a:b], g[a:b])
			}
			return slices.Concat(p, m, v)
		}
		if !slices.Equal(run(0, n), run(0, cut, n)) {
			t.Fatalf("a cut at %d changes bits", cut)
		}
	})
}

func TestBadHyperparametersAreRefused(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		o    interface{ Validate() error }
		want string
	}{
		{AdamW{}, ""},
		{AdamW{LR: 1e-3, Beta1: Zero, Beta2: 0.5, ClipNorm: 1, LossScale: 65536}, ""},
		{AdamW{LR: -1}, "AdamW.LR is -1, expected a number from 0 to 3.4"},
		{AdamW{LR: nan}, "AdamW.LR is NaN"},
		{AdamW{Beta1: 1}, "AdamW.Beta1 is 1, expected a number below 1"},
		{AdamW{Beta2: -0.1}, "AdamW.Beta2 is -0.1"},
		{AdamW{Eps: inf}, "AdamW.Eps is +Inf"},
		{AdamW{WeightDecay: -1}, "AdamW.WeightDecay is -1"},
		{AdamW{ClipNorm: nan}, "AdamW.ClipNorm is NaN"},
		{AdamW{LossScale: -2}, "AdamW.LossScale is -2"},
		{AdamW{LossScale: 5e-324}, "AdamW.LossScale is 5e-324, expected 0 for none, or a number from 2^-126 to 2^126"},
		{AdamW{LossScale: 1e39}, "AdamW.LossScale is 1e+39"},
		{AdamW{LossScale: inf}, "AdamW.LossScale is +Inf"},
		{AdamW{LossScale: 0x1p-126, LR: math.MaxFloat32}, ""},
		{AdamW{LR: 1e308}, "AdamW.LR is 1e+308, expected a number from 0 to 3.4"},
		{SGD{LossScale: nan}, "SGD.LossScale is NaN"},
		{SGD{WeightDecay: 1e39}, "SGD.WeightDecay is 1e+39"},
		{SGD{LR: 1, Momentum: 1}, ""},
		{SGD{Momentum: -0.5}, "SGD.Momentum is -0.5"},
		{SGD{Dampening: inf}, "SGD.Dampening is +Inf"},
		{SGD{Nesterov: true}, "SGD.Nesterov needs SGD.Momentum above 0"},
		{SGD{Nesterov: true, Momentum: 0.9, Dampening: 0.1}, "SGD.Nesterov needs"},
	} {
		err := c.o.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.o, err, c.want)
		}
	}
}

func TestPrepareRefusesWhatItsCallerGotWrong(t *testing.T) {
	for _, c := range []struct {
		step  int64
		scale float64
		want  string
	}{
		{0, 1, "step is 0, steps are counted from 1"},
		{1, math.NaN(), "the gradient scale is NaN"},
		{1, -1, "the gradient scale is -1"},
	} {
		_, adam := AdamW{LR: 1}.Prepare(c.step, c.scale)
		_, sgd := SGD{LR: 1}.Prepare(c.step, c.scale)
		for _, err := range []error{adam, sgd} {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("step %d scale %v: got %v, want %q", c.step, c.scale, err, c.want)
			}
		}
	}
	if _, err := (AdamW{LR: -1}).Prepare(1, 1); err == nil {
		t.Error("AdamW.Prepare accepted a negative rate")
	}
	if _, err := (SGD{LR: -1}).Prepare(1, 1); err == nil {
		t.Error("SGD.Prepare accepted a negative rate")
	}
}

func TestPowerAgreesWithPow(t *testing.T) {
	for _, b := range []float64{0, 0.5, 0.9, 0.999, 0.9999999} {
		for _, n := range []int64{1, 2, 3, 7, 1000, 123457, 1 << 40} {
			if got, want := power(b, n), math.Pow(b, float64(n)); math.Abs(got-want) > 1e-9*want {
				t.Errorf("power(%v, %d) = %v, want %v", b, n, got, want)
			}
		}
	}
}

// normOf sums a whole gradient.
func normOf[F float](x []F, put func([]byte, []F)) (n Norm) {
	partials := make([]byte, PartialBytes(int64(len(x))))
	put(partials, x)
	n.AddAll(partials)
	return n
}

func TestNormsAreTheSameForAnyCutAtChunks(t *testing.T) {
	x := gradients(5*ChunkElements+77, 3)
	whole64, whole32 := make([]byte, 6*NormBytes), make([]byte, 6*NormBytes)
	PutNorms64(whole64, x)
	PutNorms(whole32, toFloat32(x))
	for chunks := 1; chunks <= 5; chunks++ {
		got64, got32 := make([]byte, 6*NormBytes), make([]byte, 6*NormBytes)
		cut := chunks * ChunkElements
		PutNorms64(got64, x[:cut])
		PutNorms64(got64[chunks*NormBytes:], x[cut:])
		PutNorms(got32, toFloat32(x[:cut]))
		PutNorms(got32[chunks*NormBytes:], toFloat32(x[cut:]))
		if !bytes.Equal(got64, whole64) || !bytes.Equal(got32, whole32) {
			t.Errorf("a cut after %d chunks gives other norms", chunks)
		}
	}
}

// pairs adds up a power of two of numbers in the documented order.
func pairs(x []float64) float64 {
	if len(x) == 1 {
		return x[0]
	}
	return pairs(x[:len(x)/2]) + pairs(x[len(x)/2:])
}

func TestNormsSumSquaresInTheDocumentedOrder(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 31, 63, 64, 65, 4095, 4096, 4097, 8191, 8192, 8193, 20000} {
		x := toFloat32(gradients(n, 1))
		var sums [SumNorms]float64
		for chunk := 0; chunk*ChunkElements < n; chunk++ {
			var squares [ChunkElements]float64
			for i, v := range x[chunk*ChunkElements : min(n, (chunk+1)*ChunkElements)] {
				squares[i] = float64(v) * float64(v)
			}
			sums[chunk] = pairs(squares[:])
		}
		want := pairs(sums[:])
		if got := normOf(x, PutNorms); got.SumSquares != want || got.NonFinite != 0 || !got.Finite() {
			t.Errorf("%d elements: got %v, want %v", n, got, want)
		}
	}
}

func TestNormsOfManyChunksAddUpInTheDocumentedOrder(t *testing.T) {
	for _, n := range []int{0, 1, SumNorms - 1, SumNorms, SumNorms + 1, 3*SumNorms + 17} {
		partials := make([]byte, n*NormBytes)
		var sums [SumNorms]float64
		for i, x := range gradients(n, 2) {
			Norm{SumSquares: x * x, NonFinite: 2}.Put(partials[i*NormBytes:])
			sums[i%SumNorms] += float64(x * x)
		}
		got := Norm{SumSquares: 0.1, NonFinite: 5}
		got.AddAll(partials)
		if want := (Norm{SumSquares: 0.1 + pairs(sums[:]), NonFinite: int64(5 + 2*n)}); got != want {
			t.Errorf("%d norms: got %v, want %v", n, got, want)
		}
	}
}

func TestNormsCountEveryNonFiniteElementOnce(t *testing.T) {
	x := make([]float32, 2*ChunkElements+5)
	for i, v := range map[int]float64{0: math.NaN(), 9: math.Inf(1), ChunkElements: math.Inf(-1), 2*ChunkElements + 4: math.NaN()} {
		x[i] = float32(v)
	}
	if n := normOf(x, PutNorms); n.NonFinite != 4 || n.Finite() {
		t.Errorf("counted %d, want 4; finite %v", n.NonFinite, n.Finite())
	}
	if large := normOf([]float64{1e200, 1}, PutNorms64); large.NonFinite != 0 || large.Finite() {
		t.Errorf("an overflow of the sum counts %d elements, finite %v", large.NonFinite, large.Finite())
	}
	if huge := normOf([]float32{math.MaxFloat32, math.MaxFloat32}, PutNorms); !huge.Finite() {
		t.Error("the squares of the largest f32 overflow")
	}
}

func TestGradScaleUnscalesAndClips(t *testing.T) {
	for _, c := range []struct {
		sumSquares, lossScale, clip float64
		scale, norm                 float64
	}{
		{25, 0, 0, 1, 5},
		{25, 1, 0, 1, 5},
		{25, 0, 10, 1, 5},
		{25, 0, 1, 1 / (5 + 1e-6), 5},
		{25 * 64, 8, 0, 0.125, 5},
		{25 * 64, 8, 1, 1 / (5 + 1e-6) / 8, 5},
		{0, 0, 1e-7, 0.1, 0},
		{0, 0, 1, 1, 0},
	} {
		n := Norm{SumSquares: c.sumSquares}
		for _, by := range []interface{ GradScale(Norm) (float64, float64) }{
			AdamW{LossScale: c.lossScale, ClipNorm: c.clip}, SGD{LossScale: c.lossScale, ClipNorm: c.clip},
		} {
			if scale, norm := by.GradScale(n); math.Abs(scale-c.scale) > 1e-15 || norm != c.norm {
				t.Errorf("%+v: got %v and %v, want %v and %v", by, scale, norm, c.scale, c.norm)
			}
		}
	}
}

// The hashes are equal on all architectures: no product is fused into a sum.
func TestBitsStayWhatTheyAre(t *testing.T) {
	const n = 333
	adam, err := AdamW{LR: 0.01, WeightDecay: 0.1}.Prepare(7, 0.3)
	if err != nil {
		t.Fatal(err)
	}
	sgd, err := SGD{LR: 0.01, Momentum: 0.9, Nesterov: true, WeightDecay: 0.1}.Prepare(7, 0.3)
	if err != nil {
		t.Fatal(err)
	}
	var norm Norm
	partials := make([]byte, PartialBytes(n))
	state, state32 := make([][]float64, 4), make([][]float32, 4)
	for i := range state {
		state[i] = gradients(n, int64(i))
		for j := range state[i] {
			state[i][j] = math.Round(state[i][j]*0x1p30) * 0x1p-30 // what is left of math.Sin is the same everywhere
		}
		state32[i] = toFloat32(state[i])
	}
	for i := range state[2] {
		state[2][i] *= state[2][i]
		state32[2][i] *= state32[2][i]
	}
	h := fnv.New64a()
	for range 3 {
		adam.Update64(state[0], state[1], state[2], state[3])
		adam.Update(state32[0], state32[1], state32[2], state32[3])
		sgd.Update64(state[0], state[1], state[3])
		sgd.Update(state32[0], state32[1], state32[3])
		PutNorms64(partials, state[0])
		norm.AddAll(partials)
		PutNorms(partials, state32[0])
		norm.AddAll(partials)
		binary.Write(h, binary.LittleEndian, slices.Concat(state[:3]...))
		binary.Write(h, binary.LittleEndian, slices.Concat(state32[:3]...))
		binary.Write(h, binary.LittleEndian, norm)
	}
	const want = uint64(0x54397c6d91fb76ac)
	if got := h.Sum64(); got != want {
		t.Errorf("the states hash to %#x, expected %#x", got, want)
	}
}

func TestUpdatesDoNotAllocate(t *testing.T) {
	partials := make([]byte, PartialBytes(64))
	p, m, v, g := make([]float32, 64), make([]float32, 64), make([]float32, 64), make([]float32, 64)
	if n := testing.AllocsPerRun(10, func() {
		adam, _ := AdamW{LR: 0.1}.Prepare(1, 1)
		adam.Update(p, m, v, g)
		sgd, _ := SGD{LR: 0.1, Momentum: 0.9}.Prepare(1, 1)
		sgd.Update(p, m, g)
		var norm Norm
		PutNorms(partials, g)
		norm.AddAll(partials)
	}); n != 0 {
		t.Errorf("a step allocates %v times", n)
	}
}
