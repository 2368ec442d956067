package goemit

import (
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Constants are named after the Go names that the plan gives to kinds and
// fields, with the kind's first letter in lower case:
//
//	h_bf16_unit, h_bf16_end, h_bf16_shard_world8: a bucket of kind H
//	embed_shared_Wte_unit and so on: the bucket of a shared parameter
//	h_numel_Mlp, h_start_Mlp: a parameter
//
// Such names never meet: behind the first word, no word of a plan's name is a
// Go word in lower case alone, so numel, start, shared and the bucket's type
// are found again in any of them. Constants of the whole model have no
// underscore.

// bucketNames are the constants of one bucket.
type bucketNames struct {
	prefix string
	params []paramNames
}

// paramNames are the constants of one parameter.
type paramNames struct{ numel, start string }

func (n *bucketNames) unit() string { return n.prefix + "_unit" }
func (n *bucketNames) end() string  { return n.prefix + "_end" }

// shard names the elements that each of the ranks owns.
func (n *bucketNames) shard(ranks int64) string {
	return fmt.Sprintf("%s_shard_world%d", n.prefix, ranks)
}

func worldName(ranks int64) string { return fmt.Sprintf("world%d", ranks) }
func restName(ranks int64) string  { return fmt.Sprintf("restBytesWorld%d", ranks) }
func peakName(ranks int64) string  { return fmt.Sprintf("peakBytesWorld%d", ranks) }

// names holds the constants' names of all buckets.
type names struct {
	own    [][]bucketNames // for each kind and bucket
	shared []bucketNames
}

// of returns the names of the bucket that a reference points into, seen from a
// kind.
func (n *names) of(kind int, at plan.Ref) *bucketNames {
	if at.Shared {
		return &n.shared[at.Bucket]
	}
	return &n.own[kind][at.Bucket]
}

// nameConstants names the constants of a plan. A plan in which a parameter has
// no owner, or two, is an error.
func nameConstants(p *plan.Plan) (*names, error) {
	n := &names{shared: emptyNames(p.Layout.Shared)}
	for k := range p.Layout.Kinds {
		own := emptyNames(p.Layout.Kinds[k].Buckets)
		nameBuckets(own, p.Layout.Kinds[k].Buckets, lowerFirst(p.Kinds[k].GoName))
		n.own = append(n.own, own)
		for f := range p.Kinds[k].Fields {
			if err := n.nameField(p, k, &p.Kinds[k].Fields[f]); err != nil {
				return nil, err
			}
		}
	}
	return n, n.complete(p)
}

func emptyNames(buckets []layout.Bucket) []bucketNames {
	list := make([]bucketNames, len(buckets))
	for i := range buckets {
		list[i].params = make([]paramNames, len(buckets[i].Params))
	}
	return list
}

// nameBuckets calls a bucket after its type, marks one that is frozen though its
// type could be trained, and counts where that is not enough.
func nameBuckets(list []bucketNames, buckets []layout.Bucket, kind string) {
	for i := range buckets {
		prefix := kind + "_" + buckets[i].DType.String()
		if !buckets[i].Trainable && buckets[i].DType.Trainable() {
			prefix += "frozen"
		}
		unique := prefix
		for n := 2; taken(list[:i], unique); n++ {
			unique = fmt.Sprintf("%sn%d", prefix, n)
		}
		list[i].prefix = unique
	}
}

func taken(list []bucketNames, prefix string) bool {
	for i := range list {
		if list[i].prefix == prefix {
			return true
		}
	}
	return false
}

// nameField names the constants of the parameter that a field owns.
func (n *names) nameField(p *plan.Plan, kind int, f *plan.Field) error {
	if err := checkRef(p.Layout, kind, f); err != nil {
		return err
	}
	if !f.Own {
		return nil
	}
	bucket := n.of(kind, f.At)
	param := &bucket.params[f.At.Param]
	if param.numel != "" {
		return fmt.Errorf("parameter %s: its place in the plan has two owners", printable(f.Name))
	}
	prefix := lowerFirst(p.Kinds[kind].GoName)
	param.numel, param.start = prefix+"_numel_"+f.GoName, prefix+"_start_"+f.GoName
	if f.At.Shared && bucket.prefix == "" {
		bucket.prefix = prefix + "_shared_" + f.GoName
	}
	return nil
}

func checkRef(m *layout.Model, kind int, f *plan.Field) error {
	buckets := m.Kinds[kind].Buckets
	if f.At.Shared {
		buckets = m.Shared
	}
	if f.At.Bucket < 0 || f.At.Bucket >= len(buckets) || f.At.Param < 0 || f.At.Param >= len(buckets[f.At.Bucket].Params) {
		return fmt.Errorf("parameter %s of block %s: the plan has no place for it", printable(f.Name), printable(m.Kinds[kind].Name))
	}
	return nil
}

// complete reports the first parameter that no field owns.
func (n *names) complete(p *plan.Plan) error {
	for k := range n.own {
		if err := ownersOf(n.own[k], p.Layout.Kinds[k].Buckets); err != nil {
			return err
		}
	}
	return ownersOf(n.shared, p.Layout.Shared)
}

func ownersOf(list []bucketNames, buckets []layout.Bucket) error {
	for b := range list {
		for i := range list[b].params {
			if list[b].params[i].numel == "" {
				return fmt.Errorf("parameter %s: no block of the plan owns it", printable(buckets[b].Params[i].Name))
			}
		}
	}
	return nil
}

func lowerFirst(goName string) string { return strings.ToLower(goName[:1]) + goName[1:] }

func upperFirst(name string) string { return strings.ToUpper(name[:1]) + name[1:] }
