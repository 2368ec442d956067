package cli

import (
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/spec"
)

// runSchema prints a JSON Schema.
func runSchema(c *call) error {
	of := "spec"
	if len(c.args) > 0 {
		of = c.args[0]
	}
	switch of {
	case "spec":
		c.stdout.Write(spec.Schema())
	case "plan":
		c.stdout.Write(plan.Schema)
	default:
		return c.withUsage(usageErrorf("there is a schema of spec and of plan, not of %q%s", of, didYouMean(of, []string{"spec", "plan"})))
	}
	return nil
}
