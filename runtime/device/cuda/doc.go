// Package cuda is an NVIDIA GPU, driven through the functions of libcuda that the
// machine's driver brings: no cgo, no CUDA toolkit.
//
// It takes what package device takes and gives a [Device] with memory, [Stream]s
// and a generated package's [Kernels]. What it can't do becomes an error that
// says why: no driver, one that is too old, a package without compiled kernels.
// A trainer's own kernels run on the same streams: [Device.LoadModule],
// [Module.Function], [Stream.Launch]; libraries such as cuBLAS and NCCL take
// [Stream.Handle], between [Device.Enter] and [Device.Leave].
//
// It imports runtime/device and the packages below that, runtime/fatbin,
// runtime/kernel and runtime/internal/dynlib. It builds everywhere and works on
// 64-bit Linux.
package cuda
