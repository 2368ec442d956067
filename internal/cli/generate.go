package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/goemit"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/spec"
)

// product is the generated package of one spec, in memory.
type product struct {
	spec    string // path as given
	name    string // of the package
	folder  string
	files   output.Set // the fatbin is the last
	kernels *kernels   // nil without CUDA
}

// runGenerate writes the packages of all specs, or of none if a spec has a
// fault, a file is in the way, or kernels don't compile.
func runGenerate(c *call) error {
	products, err := c.products()
	if err != nil {
		return err
	}
	if _, err := compare(products); err != nil {
		return err
	}
	if err := c.compile(products); err != nil {
		return err
	}
	var empty []product
	for _, p := range products {
		written, err := p.files.Write(p.folder)
		if err != nil {
			return err
		}
		if c.options.verbose {
			c.printLines(written.Lines())
		}
		if p.kernels != nil && p.kernels.empty {
			empty = append(empty, p)
		}
	}
	c.sayEmpty(empty)
	return nil
}

// runCheck prints what runGenerate would change. It compiles nothing.
func runCheck(c *call) error {
	products, err := c.products()
	if err != nil {
		return err
	}
	reports, err := compare(products)
	if err != nil {
		return err
	}
	var drift error
	for i, r := range reports {
		drift = errors.Join(drift, c.drift(products[i], r))
	}
	return drift
}

// drift prints the difference between a product and its folder, and returns an
// error that says how to mend it.
func (c *call) drift(p product, r *output.Report) error {
	c.stdout.Write(r.Diff())
	stale := c.fatbinDrift(p)
	if !r.Drift() || stale != nil && r.OnlyChanged(fatbin.FileName) {
		return stale
	}
	return errors.Join(&driftError{fmt.Sprintf("%s is not what %s gives: run \"%s\"", p.folder, p.spec, c.generateCommand(p))}, stale)
}

// generateCommand is what brings a product up to date.
func (c *call) generateCommand(p product) string { return c.commandFor([]string{shellWord(p.spec)}) }

// commandFor is generate for specs, with the flags of this call.
func (c *call) commandFor(specs []string) string {
	command := programName() + " generate " + strings.Join(specs, " ")
	if c.options.out != "" {
		command += " --out " + shellWord(c.options.out)
	}
	if c.options.cuda == cudaOff || c.options.cuda == cudaRequire {
		command += " --cuda " + c.options.cuda
	}
	return command
}

func (c *call) printLines(lines []string) {
	for _, line := range lines {
		fmt.Fprintln(c.stdout, line)
	}
}

// compare sets every product against its folder and writes nothing.
func compare(products []product) ([]*output.Report, error) {
	reports := make([]*output.Report, len(products))
	var all error
	for i, p := range products {
		report, err := p.files.Check(p.folder)
		reports[i], all = report, errors.Join(all, err, otherPackage(p))
	}
	return reports, all
}

// products generates all specs of the call. Its error joins the faults of all.
func (c *call) products() ([]product, error) {
	if err := c.checkRequest(); err != nil {
		return nil, err
	}
	var products []product
	var all error
	for _, path := range c.args {
		var p product
		err := c.long("generating from "+path, func() (err error) {
			p, err = c.product(path)
			return err
		})
		products, all = append(products, p), errors.Join(all, err)
	}
	if all != nil {
		return nil, all
	}
	return products, sameFolder(products)
}

// checkRequest refuses what no spec can make right.
func (c *call) checkRequest() error {
	if err := c.refuseTwice(); err != nil {
		return err
	}
	switch {
	case slices.Contains(c.args, standardInput):
		return c.withUsage(usageErrorf("%s reads no spec from standard input: generated files name the spec's file", c.command.name))
	case c.options.out != "" && len(c.args) > 1:
		return c.withUsage(usageErrorf("--out names the folder of one package, but %d specs are given: run %s for each", len(c.args), c.command.name))
	}
	return nil
}

// refuseTwice refuses a file that is given twice, under whatever path.
func (c *call) refuseTwice() error {
	for i, path := range c.args {
		for _, before := range c.args[:i] {
			switch {
			case path == before:
				return c.withUsage(usageErrorf("%s is given twice", path))
			case sameFile(path, before):
				return c.withUsage(usageErrorf("%s and %s are the same file", before, path))
			}
		}
	}
	return nil
}

// sameFolder refuses specs whose packages would overwrite each other.
func sameFolder(products []product) error {
	for i, p := range products {
		for _, before := range products[:i] {
			if sameFile(p.folder, before.folder) {
				return usageErrorf("%s and %s both give the package in %s: change the key `package` of one of them, or run them one by one with --out",
					before.spec, p.spec, p.folder)
			}
		}
	}
	return nil
}

func (c *call) product(path string) (product, error) {
	p, err := c.planned(path)
	if err != nil {
		return product{}, err
	}
	origin := goemit.Origin(p)
	folder, err := c.packageFolder(path, p.Spec.Package.V, origin)
	if err != nil {
		return product{}, err
	}
	made := product{spec: path, name: p.Spec.Package.V, folder: folder, files: output.Set{Origin: origin, Model: goemit.ModelName(p)}}
	if err := c.emit(&made, p); err != nil {
		return product{}, fmt.Errorf("%s: %w", path, err)
	}
	return made, nil
}

// emit adds the files of a package: Go, and CUDA unless it is off.
func (c *call) emit(to *product, p *plan.Plan) error {
	if c.options.cuda == cudaOff {
		files, err := goemit.Package(p)
		to.files.Files = files
		return err
	}
	source, err := cuemit.Package(p)
	if err != nil {
		return err
	}
	if to.kernels, err = findKernels(source, to.folder, to.files.Origin); err != nil {
		return err
	}
	files, err := goemit.PackageWithKernels(p, to.kernels.hash)
	to.files.Files = slices.Concat(files, source, []output.File{to.kernels.file()})
	return err
}

// planned reads, parses and plans a spec, at its own world sizes if none is
// given.
func (c *call) planned(path string) (*plan.Plan, error) {
	m, err := c.parsed(path)
	if err != nil {
		return nil, err
	}
	p, faults := plan.Build(m)
	return p, faults.Err()
}

func (c *call) parsed(path string) (*spec.Model, error) {
	name, src, err := c.readSpec(path)
	if err != nil {
		return nil, err
	}
	m, faults := spec.Parse(name, src)
	return m, faults.Err()
}
