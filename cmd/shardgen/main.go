// Command shardgen turns the YAML description of a model into a Go package in
// which every shard offset is a constant. Run "shardgen help".
package main

import (
	"os"

	"github.com/shardgen/shardgen/internal/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
