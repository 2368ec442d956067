module github.com/shardgen/shardgen/examples

go 1.26.0

require (
	github.com/shardgen/shardgen v0.0.0
	gonum.org/v1/gonum v0.17.0
)

replace github.com/shardgen/shardgen => ../
