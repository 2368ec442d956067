// Package gpucheck is the program gpucheck: it shows whether everything that this
// project does on GPUs works on the machine at hand, and how fast.
//
// [Run] takes the program's arguments and gives its exit status. Its sections, in
// this order: the kernels of all committed packages against the CPU (package
// devicetest), ranges beyond 2^31 elements, whole models on one GPU and on
// several, NCCL between all GPUs, the bandwidth of each kernel, and the host's cost
// of a gather. Each result is a line of a table, and of the JSON report.
//
// It may import the committed generated packages, internal/devicetest and all of
// runtime. It does not import testing or the doubles, which its tests put in the
// place of the driver and of NCCL.
package gpucheck
