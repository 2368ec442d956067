// Package goldentest has tests only: it trains generated packages on ranks in one
// process and compares every figure with what DeepSpeed and torch measured.
package goldentest
