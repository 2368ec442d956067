package cli

import (
	"errors"
	"fmt"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/gen/output"
)

// packageFolder returns the folder of the package that a spec gives: --out, or
// under go generate the folder of the package's own name or the current one, or
// what defaultFolder says. origin is what the package's files name as their
// source.
func (c *call) packageFolder(specPath, pkg, origin string) (string, error) {
	switch {
	case c.options.out != "":
		return filepath.Clean(c.options.out), nil
	case os.Getenv("GOFILE") != "" && os.Getenv("GOPACKAGE") == pkg:
		return ".", nil
	case os.Getenv("GOFILE") != "" && os.Getenv("GOPACKAGE") != "":
		return pkg, nil
	}
	return defaultFolder(specPath, pkg, origin)
}

// defaultFolder returns the folder that holds the package already: beside the
// spec, where go generate puts it, or generated/PACKAGE beside the go.mod above
// the spec, which is also the place of a new package. Of two packages a trainer
// imports one and the other would grow stale, so two are refused.
func defaultFolder(specPath, pkg, origin string) (string, error) {
	beside := filepath.Dir(specPath)
	candidates := []string{filepath.Join(beside, pkg), beside}
	root, err := moduleRoot(beside)
	central := relative(filepath.Join(root, "generated", pkg))
	if err == nil {
		candidates = append(candidates, central)
	}
	var found []string
	for _, folder := range candidates {
		known := slices.ContainsFunc(found, func(other string) bool { return sameFile(folder, other) })
		if !known && holdsPackage(folder, pkg, origin) {
			found = append(found, folder)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("%s: its package is in more than one folder, %s: name the one that is imported with --out, or remove the others",
			specPath, strings.Join(found, " and "))
	case err != nil:
		return "", fmt.Errorf("%s: %w: run \"go mod init\" in the module's folder, or name the package's folder with --out", specPath, err)
	}
	return central, nil
}

// holdsPackage tells whether a folder has Go files of the package that were
// generated from the spec that origin names. One that can't be read holds none:
// writing to it says why.
func holdsPackage(folder, pkg, origin string) bool {
	earlier, err := (&output.Set{Origin: origin}).Check(folder) // with no files of its own, all of an earlier run are left over
	if err != nil {
		return false
	}
	return slices.ContainsFunc(earlier.Changes, func(c output.Change) bool {
		return strings.HasSuffix(c.Name, ".go") && packageOf(folder, c.Name) == pkg
	})
}

var errNoModule = errors.New("no folder above it has a go.mod")

// moduleRoot returns the nearest folder at or above a folder that has a go.mod.
func moduleRoot(folder string) (string, error) {
	at, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	for {
		if info, err := os.Stat(filepath.Join(at, "go.mod")); err == nil && info.Mode().IsRegular() {
			return at, nil
		}
		above := filepath.Dir(at)
		if above == at {
			return "", errNoModule
		}
		at = above
	}
}

// relative shortens a path to one from the current folder, if it lies below.
func relative(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(short) {
		return short
	}
	return path
}

// sameFile tells whether two paths name one file or folder, which need not
// exist.
func sameFile(a, b string) bool {
	if absolute(a) == absolute(b) {
		return true
	}
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

func absolute(path string) string {
	full, err := filepath.Abs(path)
	if err != nil {
		return filepath.Clean(path)
	}
	return full
}

// otherPackage refuses a folder with Go files of another package than the one
// to be generated: the go tool builds neither of the two then.
func otherPackage(p product) error {
	entries, err := os.ReadDir(p.folder)
	if err != nil {
		return nil // writing says what is wrong with it
	}
	for _, entry := range entries {
		file := entry.Name()
		if !entry.Type().IsRegular() || strings.HasPrefix(file, output.Prefix) || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		if name := packageOf(p.folder, file); name != "" && name != p.name {
			return fmt.Errorf("%s is of package %s, but %s gives package %s: name another folder with --out, or set the key `package` to %s",
				filepath.Join(p.folder, file), name, p.spec, p.name, name)
		}
	}
	return nil
}

// packageOf returns the package of a Go file, and nothing where the build
// leaves the file out or can't read it.
func packageOf(folder, file string) string {
	if used, err := build.Default.MatchFile(folder, file); err != nil || !used {
		return ""
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(folder, file), nil, parser.PackageClauseOnly)
	if err != nil {
		return ""
	}
	return parsed.Name.Name
}
