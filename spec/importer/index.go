package importer

import (
	"errors"
	"fmt"
	"slices"
)

// index is a model.safetensors.index.json: which file holds which tensor.
type index struct {
	file   string            // name of the index itself, for messages
	shard  map[string]string // tensor -> file, as in weight_map
	names  []string          // the tensors in the order of weight_map
	shards []string          // the files, sorted
}

// hasWeightMap tells an index from a parameter table.
func hasWeightMap(text []byte) (bool, error) {
	r, err := newJSONReader(text)
	if err != nil {
		return false, err
	}
	found := map[string]bool{}
	err = r.object("the file", func(key string) error {
		found[key] = true
		return r.skip(key)
	})
	if err == nil && !found["weight_map"] && !found["params"] {
		err = errors.New("neither an index (key weight_map) nor a parameter table (key params)")
	}
	return found["weight_map"], err
}

func parseIndex(text []byte) (*index, error) {
	const what = "index"
	r, err := newJSONReader(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	ix := &index{shard: map[string]string{}}
	err = r.object(what, func(key string) error {
		if key != "weight_map" {
			return r.skip(key)
		}
		return r.object(key, func(name string) error { return ix.readPlace(r, name) })
	})
	if err != nil {
		return nil, err
	}
	for _, name := range ix.names {
		ix.shards = append(ix.shards, ix.shard[name])
	}
	slices.Sort(ix.shards)
	ix.shards = slices.Compact(ix.shards)
	return ix, r.end(what)
}

// readPlace reads the file of a tensor. A path would lead a caller who opens it
// out of the checkpoint's folder.
func (ix *index) readPlace(r *jsonReader, name string) error {
	what := fmt.Sprintf("weight_map %q", name)
	shard, err := r.str(what)
	if err != nil {
		return err
	}
	if shard != baseName(shard) || oneOf(shard, ".", "..", "/") {
		return fmt.Errorf("%s: %q: expected the name of a file in the index's folder", what, shard)
	}
	ix.names, ix.shard[name] = append(ix.names, name), shard
	return nil
}

// ShardNames returns the files that an index names, sorted, without folder. A
// caller opens them beside the index and passes them to Import with it.
func ShardNames(text []byte) ([]string, error) {
	ix, err := parseIndex(text)
	if err != nil {
		return nil, err
	}
	return ix.shards, nil
}

// IsIndex reports whether a JSON text is the index of a sharded checkpoint.
func IsIndex(text []byte) bool {
	found, err := hasWeightMap(text)
	return err == nil && found
}

// checkShards makes sure that all shards are there: an index has no shapes.
func (ix *index) checkShards(files []File) error {
	given := map[string]bool{}
	for _, f := range files {
		given[baseName(f.Name)] = true
	}
	for _, shard := range ix.shards {
		if !given[shard] {
			return fmt.Errorf("%s: shapes are unknown, since an index holds none and %s is missing: "+
				"put the shards, or their bare headers, beside the index", ix.file, shard)
		}
	}
	return nil
}

// checkTensors makes sure that no tensor of the index is missing. checkKnown has
// seen that those found are in their places.
func (ix *index) checkTensors(found map[string]string) error {
	for _, name := range ix.names {
		if _, ok := found[name]; !ok {
			return fmt.Errorf("%s: the index places tensor %q in %s, which does not hold it", ix.file, name, ix.shard[name])
		}
	}
	return nil
}

// checkKnown makes sure that a tensor of a file is where the index places it.
func (ix *index) checkKnown(name, file string) error {
	if shard, ok := ix.shard[name]; !ok || shard != file {
		return fmt.Errorf("%s holds tensor %q, which %s does not place there: "+
			"the shards and the index are of different checkpoints", file, name, ix.file)
	}
	return nil
}
