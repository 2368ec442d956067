module github.com/shardgen/shardgen/examples

go 1.25.0

require gonum.org/v1/gonum v0.17.0

replace github.com/shardgen/shardgen => ../
