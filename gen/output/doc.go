// Package output keeps the generated files of one spec in memory, compares them
// with a directory, and writes them to it.
//
// It takes a Set and a directory and gives a Report of what differs, or of what
// was done. Writing is all or nothing: a failure at any point leaves the old
// files complete. Only files that shardgen generated from the same spec are
// overwritten or removed; anything else in the directory is left as it is.
//
// Two runs in one directory wait for each other. A file's origin is in its header
// or, for compiled kernels, in their record.
//
// Of the project it imports runtime/fatbin only.
package output
