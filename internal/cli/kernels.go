package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shardgen/shardgen/cudasrc/toolchain"
	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/fatbuild"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

// kernels is the CUDA side of a product: its source, and the compiled kernels
// that its folder has.
type kernels struct {
	source []output.File
	hash   string // of the source
	path   string // of the fatbin
	there  bool   // a file is at path
	fault  error  // why what is there is not of this source; nil if it is, or nothing is there
	fatbin []byte // what is there if it is of this source, else sealed without an image
	empty  bool   // fatbin has no image
}

// findKernels looks at the fatbin of a folder. One of the same source is kept as
// it is, whichever compiler is here now.
func findKernels(source []output.File, folder, origin string) (*kernels, error) {
	hash, err := fatbuild.SourceHash(source, cuemit.KernelsFile)
	if err != nil {
		return nil, err
	}
	k := &kernels{source: source, hash: hash, path: filepath.Join(folder, fatbin.FileName), empty: true}
	wanted := fatbin.Record{Origin: origin, Source: hash}
	k.fatbin = fatbin.Seal(nil, wanted)
	content, err := readRegular(k.path)
	if err != nil {
		return k, nil // comparing the files says what is wrong with it
	}
	k.there = true
	image, found, err := fatbin.Open(string(content))
	switch {
	case err != nil:
		k.fault = fmt.Errorf("%s is damaged: %w", k.path, err)
	case found.Source != hash && image != "":
		k.fault = fmt.Errorf("%s is stale: it was compiled from CUDA source %.12s..., now it is %.12s...", k.path, found.Source, hash)
	case found == wanted:
		k.fatbin, k.empty = content, image == ""
	}
	return k, nil
}

// readRegular does not wait for a pipe, nor fill the memory.
func readRegular(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFatbinBytes) {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// file is the fatbin as a generated file.
func (k *kernels) file() output.File { return output.File{Name: fatbin.FileName, Content: k.fatbin} }

// findNVCC is changed by tests that must not find the machine's own.
var findNVCC = func() (*toolchain.Compiler, error) { return toolchain.Search(toolchain.DefaultNVCC) }

// Limits: the compilation of one package, an nvcc's answer to --version, and the
// length of a fatbin that is looked at.
const (
	compileLimit   = 10 * time.Minute
	versionLimit   = 30 * time.Second
	maxFatbinBytes = 512 << 20
)

// compile fills the fatbins that are empty, one after another. Without a
// compiler they stay so, unless they are required.
func (c *call) compile(products []product) error {
	var nvcc *toolchain.Compiler
	for i := range products {
		p := &products[i]
		if p.kernels == nil || !p.kernels.empty {
			continue
		}
		if nvcc == nil {
			found, err := usableNVCC()
			switch {
			case errors.Is(err, toolchain.ErrMissing) && c.options.cuda != cudaRequire:
				return nil
			case errors.Is(err, toolchain.ErrMissing):
				return fmt.Errorf("--cuda require: %w; --cuda auto generates without it, for CPUs only", err)
			case err != nil:
				return fmt.Errorf("%s: %w; --cuda off generates without kernels, for CPUs only", p.spec, err)
			}
			nvcc = found
		}
		if err := c.long("compiling the kernels of "+p.spec, func() error { return p.compile(nvcc) }); err != nil {
			return fmt.Errorf("%s: %w", p.spec, err)
		}
	}
	return nil
}

func usableNVCC() (*toolchain.Compiler, error) {
	nvcc, err := findNVCC()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionLimit)
	defer cancel()
	return nvcc, nvcc.CheckRelease(ctx)
}

// compile puts an image into the product's fatbin.
func (p *product) compile(nvcc *toolchain.Compiler) error {
	ctx, cancel := context.WithTimeout(context.Background(), compileLimit)
	defer cancel()
	image, err := fatbuild.Compile(ctx, nvcc, p.kernels.source, cuemit.KernelsFile)
	if err != nil {
		return err
	}
	p.kernels.fatbin = fatbin.Seal(image, fatbin.Record{Origin: p.files.Origin, Source: p.kernels.hash})
	p.kernels.empty = false
	p.files.Files[len(p.files.Files)-1] = p.kernels.file()
	return nil
}

// sayEmpty tells in one line that packages were written without kernels.
func (c *call) sayEmpty(products []product) {
	if len(products) == 0 || c.options.json { // standard error then holds JSON only
		return
	}
	var folders, specs []string
	for _, p := range products {
		folders, specs = append(folders, p.folder), append(specs, shellWord(p.spec))
	}
	gone := ""
	if slices.ContainsFunc(products, func(p product) bool { return p.kernels.fault != nil }) {
		gone = " (kernels that were compiled from another source are gone)"
	}
	if home := os.Getenv("CUDA_HOME"); home != "" {
		gone += fmt.Sprintf(" (CUDA_HOME is %s, which has no bin/nvcc)", home)
	}
	fmt.Fprintf(c.stderr, "note: no nvcc%s: %s in %s is empty, for CPUs only; install CUDA or set %s, and run \"%s\" again\n",
		gone, fatbin.FileName, strings.Join(folders, ", "), toolchain.NVCCVariable, c.commandFor(specs))
}

// fatbinDrift says what is wrong with the fatbin of a product, nil if nothing is.
func (c *call) fatbinDrift(p product) error {
	switch k := p.kernels; {
	case k == nil:
		return nil
	case k.fault != nil:
		return &driftError{fmt.Sprintf("%v: run \"%s\"", k.fault, c.generateCommand(p))}
	case k.there && k.empty && c.options.cuda == cudaRequire:
		return &driftError{fmt.Sprintf("%s is empty: run \"%s\" where nvcc is", k.path, c.generateCommand(p))}
	case k.there && k.empty && c.options.verbose:
		fmt.Fprintf(c.stdout, "%s is empty: the package was generated without nvcc and runs on CPUs only\n", k.path)
	}
	return nil
}
