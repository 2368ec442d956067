// Package random makes a model's initial values. Element i of a parameter
// depends on the seed, the parameter's name and i alone, so every rank can fill
// the part it owns, and the same model results at any world size.
//
// It takes a [Distribution], a [Stream] and a range of elements and writes them
// into bytes. It uses +, -, *, / and square roots only, products that feed sums
// converted explicitly, so that all architectures give the same bits; it
// imports runtime/dtype and the standard library.
package random

// Stream names the random numbers of one parameter. Streams of different seeds
// are different permutations of the same counters, and within a seed different
// hashes are disjoint counters, so two streams can only coincide where the
// 64-bit hashes of two names do.
type Stream struct {
	Seed  uint64 // the Philox key, low word first
	Owner uint64 // FNV-1a hash of the owner's name: counter words 2 and 3, low word first
}

// NewStream returns the stream of a parameter that owns its storage, named in
// full ("h.3.mlp.weight").
func NewStream(seed uint64, owner string) Stream {
	return Stream{Seed: seed, Owner: hash(owner)}
}

// hash is 64-bit FNV-1a (Fowler, Noll and Vo, RFC 9923).
func hash(name string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	return h
}

// block returns the 128 random bits of a block: the elements 2*index (low) and
// 2*index+1 (high). Counter words 0 and 1 are the index, low word first.
func (s Stream) block(index uint64) (low, high uint64) {
	w0, w1, w2, w3 := philox(
		uint32(index), uint32(index>>32), uint32(s.Owner), uint32(s.Owner>>32),
		uint32(s.Seed), uint32(s.Seed>>32))
	return uint64(w0) | uint64(w1)<<32, uint64(w2) | uint64(w3)<<32
}

// philox is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", 2011) of a counter and a key. The words are
// apart, not in arrays, because Go keeps no array in registers.
func philox(c0, c1, c2, c3, k0, k1 uint32) (w0, w1, w2, w3 uint32) {
	const rounds = 10
	for range rounds {
		p0, p1 := uint64(c0)*0xd2511f53, uint64(c2)*0xcd9e8d57
		c0, c1, c2, c3 = uint32(p1>>32)^c1^k0, uint32(p1), uint32(p0>>32)^c3^k1, uint32(p0)
		k0 += 0x9e3779b9 // golden ratio
		k1 += 0xbb67ae85 // sqrt(3) - 1
	}
	return c0, c1, c2, c3
}

// uniforms fills dst with the uniform numbers of the elements from first on.
func (s Stream) uniforms(dst []float64, first int64) {
	index := uint64(first) / 2
	if first&1 == 1 && len(dst) > 0 {
		_, high := s.block(index)
		dst[0] = unit(high)
		dst, index = dst[1:], index+1
	}
	for ; len(dst) >= 2; dst = dst[2:] {
		low, high := s.block(index)
		dst[0], dst[1] = unit(low), unit(high)
		index++
	}
	if len(dst) == 1 {
		low, _ := s.block(index)
		dst[0] = unit(low)
	}
}

// unit maps 64 random bits to an odd multiple of 2^-53: uniform in (0, 1),
// never 0 or 1, exact, and so is its distance to 1.
func unit(w uint64) float64 { return (float64(w>>12) + 0.5) * 0x1p-52 }
