package cli

import (
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/shardgen/shardgen/spec"
)

// starter is the first spec of a newcomer; MODEL and PACKAGE stand for names.
//
//go:embed starter.yaml
var starter string

var modelName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*$`)

// runInit writes a first spec and says what to run next.
func runInit(c *call) error {
	name := c.args[0]
	if !modelName.MatchString(name) {
		return c.withUsage(usageErrorf("%q can't name a model: expected a letter, then letters, digits, dots, dashes or underscores", name))
	}
	src := []byte(strings.NewReplacer("MODEL", name, "PROGRAM", programName()).Replace(starter))
	path := filepath.Join(name, "model.yaml")
	m, faults := spec.Parse(path, src)
	if len(faults) > 0 {
		return c.withUsage(usageErrorf("%q can't name a model: %s", name, faults[0].Message))
	}
	if err := createFile(path, src, "remove it, or choose another name"); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "wrote %s, a small model to change as you like. %s\n", path, nextStep(path, m.Package.V))
	return nil
}

// nextStep names the command that a newcomer runs next. It has to work where
// they are: without a module there is no place to generate to.
func nextStep(path, pkg string) string {
	if _, err := moduleRoot(filepath.Dir(path)); err != nil {
		return fmt.Sprintf("Look at its plan with\n\n  %s plan %s\n\n"+
			"and run \"go mod init\" before you generate: the package belongs to a Go module.", programName(), path)
	}
	return fmt.Sprintf("Write the Go package %s with\n\n  %s generate %s", pkg, programName(), path)
}

// programName is how this program is run here.
func programName() string {
	if _, err := exec.LookPath("shardgen"); err != nil {
		return "go tool shardgen"
	}
	return "shardgen"
}

// shellWord quotes a word for a shell where it needs to be.
func shellWord(word string) string {
	if strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/+=:,@%", r)
	}) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}
