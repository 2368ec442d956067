package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/spec"
	"github.com/shardgen/shardgen/spec/importer"
)

// runImport writes the spec of a model that checkpoint files or a parameter
// table describe.
func runImport(c *call) error {
	if c.options.out == "" {
		return c.withUsage(usageErrorf("import needs --out SPEC, the file to write: - is standard output"))
	}
	if err := c.refuseTwice(); err != nil {
		return err
	}
	in, err := openInputs(c.args)
	defer in.close()
	if err != nil {
		return err
	}
	var result importer.Result
	err = c.long("importing "+c.args[0], func() (err error) {
		result, err = importer.Import(in.files, importer.Options{World: c.options.worlds, HeaderOnly: c.options.headerOnly})
		return err
	})
	if err != nil {
		return err
	}
	if err := c.writeImported(result); err != nil {
		return err
	}
	if c.options.json {
		return nil // standard error then holds JSON only
	}
	for _, note := range result.Notes {
		fmt.Fprintf(c.stderr, "note: %s\n", note)
	}
	return nil
}

// writeImported writes the spec, which has to pass the parser first.
func (c *call) writeImported(result importer.Result) error {
	if _, faults := spec.Parse(c.options.out, result.YAML); len(faults) > 0 {
		if at := slices.IndexFunc(faults, func(d spec.Diagnostic) bool { return d.Code == spec.CodeTooLarge }); at >= 0 {
			return fmt.Errorf("the model has too many parameters that are unlike each other: its spec would be larger than a spec may be: %s", faults[at].Message)
		}
		return errors.Join(faults, errors.New("internal error: the imported spec has faults and is not written: please report it with the input"))
	}
	if c.options.out == standardInput {
		c.stdout.Write(result.YAML)
		return nil
	}
	return createFile(c.options.out, result.YAML, "remove it, or name another file with --out")
}

// inputs are opened files to import.
type inputs struct {
	files []importer.File
	open  []*os.File
}

// openInputs opens the files to import, and those beside an index that it
// names. Close releases them, after an error too.
func openInputs(paths []string) (*inputs, error) {
	in := &inputs{}
	for _, path := range paths {
		if err := in.add(path); err != nil {
			return in, err
		}
	}
	for _, file := range in.files {
		if err := in.addShards(file); err != nil {
			return in, err
		}
	}
	return in, nil
}

func (in *inputs) close() {
	for _, file := range in.open {
		file.Close()
	}
}

func (in *inputs) add(path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return fmt.Errorf("%s is not a regular file: import reads files whose size is known", path)
	}
	file, err := openFile(path)
	if err != nil {
		return err
	}
	in.open = append(in.open, file)
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("can't read %s: %w", path, cause(err))
	}
	in.files = append(in.files, importer.File{Name: path, Data: file, Size: info.Size()})
	return nil
}

// addShards adds the files that an index names and that lie beside it. The
// importer says which are missing.
func (in *inputs) addShards(index importer.File) error {
	if !strings.HasSuffix(index.Name, ".json") || index.Size > maxSpecBytes {
		return nil
	}
	text, err := readLimited(io.NewSectionReader(index.Data, 0, index.Size), index.Name)
	if err != nil || !importer.IsIndex(text) {
		return err
	}
	names, err := importer.ShardNames(text)
	if err != nil {
		return fmt.Errorf("%s: %w", index.Name, err)
	}
	for _, name := range names {
		path := filepath.Join(filepath.Dir(index.Name), name)
		if _, err := os.Stat(path); err != nil || in.has(name) {
			continue
		}
		if err := in.add(path); err != nil {
			return err
		}
	}
	return nil
}

func (in *inputs) has(name string) bool {
	return slices.ContainsFunc(in.files, func(f importer.File) bool { return filepath.Base(f.Name) == name })
}
