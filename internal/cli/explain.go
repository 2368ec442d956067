package cli

import (
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/spec"
)

// runExplain prints what a diagnostic's code means.
func runExplain(c *call) error {
	code := strings.Trim(c.args[0], "[]")
	text, ok := spec.Explain(code)
	if !ok {
		return c.withUsage(usageErrorf("there is no code %q%s", code, didYouMean(code, spec.Codes())))
	}
	fmt.Fprintln(c.stdout, strings.TrimRight(text, "\n"))
	return nil
}
