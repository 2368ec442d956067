// Package cli is the shardgen command: it reads specs, plans them, and writes,
// checks or shows what comes of them.
//
// It takes arguments and streams and gives an exit status: 0 done, 1 faults in
// a spec or generated files that differ from it, 2 wrong usage, 3 anything
// else. Results go to standard output, everything else to standard error. It
// may import spec, gen and cudasrc/toolchain, and of the runtime the leaves only,
// so that the command stays a static binary without any backend.
package cli
