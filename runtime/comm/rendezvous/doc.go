// Package rendezvous is how the processes of one job find each other with
// nothing but the variables that torchrun and Slurm set, and how they keep in
// touch beside their collectives.
//
// It takes an [Environment] and gives a [Group]: rank 0 listens, the others dial
// it, and all prove to each other that they have the job's token. The
// connections stay open as control channel. Over it ranks exchange small payloads
// (the id of a communicator), hear at once of a rank that died or ended the job,
// and ask each other how far they are when a collective's deadline is over. All
// messages go over rank 0.
//
// [Inside] gives the same between goroutines of one process. The package may
// import runtime/comm and the packages below it.
package rendezvous
