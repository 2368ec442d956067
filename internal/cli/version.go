package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/shardgen/shardgen/runtime/abi"
)

func runVersion(c *call) error {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	fmt.Fprintf(c.stdout, "shardgen %s\nabi %d\n%s %s/%s\n", version, abi.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
