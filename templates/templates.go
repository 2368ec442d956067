// Package templates holds the text of generated files that are not Go: the CUDA
// header of a package's constants and the .cu of its kernels, for text/template.
//
// The templates only arrange what package gen/cuemit has worked out; they have
// no arithmetic. It imports embed only.
package templates

import "embed"

// Files are the templates, by name.
//
//go:embed *.tmpl
var Files embed.FS
