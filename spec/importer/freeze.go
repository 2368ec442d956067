package importer

import (
	"fmt"
	"strings"
)

// maxFrozenLines is how many parameters of a spec say trainable: false for
// themselves before a pattern is easier to read.
const maxFrozenLines = 3

// rule is an override of trainable.
type rule struct {
	match     string
	trainable bool
}

// sayFrozen decides how the spec says which parameters are frozen. A few say it
// for themselves; many by one pattern, or by freezing all and a pattern for the
// rest, if that fits exactly; else each says it, and overrides do for layers
// that differ from others of their repeat.
func sayFrozen(blocks []block, params []param) ([]rule, error) {
	frozen, trained := splitFrozen(params)
	if len(frozen) == 0 {
		return nil, nil
	}
	if rules := cover(frozen, trained); rules != nil && frozenLines(blocks) > maxFrozenLines {
		return rules, nil
	}
	var rules []rule
	for k := range blocks {
		own, err := blocks[k].freeze()
		if err != nil {
			return nil, err
		}
		rules = append(rules, own...)
	}
	return rules, nil
}

// splitFrozen sorts out parameters that have a gradient unless the spec says no.
func splitFrozen(params []param) (frozen, trained []param) {
	for _, p := range params {
		switch {
		case !p.trainable():
		case p.frozen:
			frozen = append(frozen, p)
		default:
			trained = append(trained, p)
		}
	}
	return frozen, trained
}

// frozenLines counts what would have to be said without a pattern: a key where
// a parameter is frozen in all instances, else an override for each.
func frozenLines(blocks []block) int {
	said := 0
	for _, b := range blocks {
		for k := range b.lines {
			if n := b.piece.frozenInstances(k); n == b.piece.len() {
				said++
			} else {
				said += n
			}
		}
	}
	return said
}

// cover looks for patterns that say exactly what is frozen.
func cover(frozen, trained []param) []rule {
	if len(trained) == 0 {
		return []rule{{"*", false}}
	}
	if match := pattern(frozen, trained); match != "" {
		return []rule{{match, false}}
	}
	if match := pattern(trained, frozen); match != "" {
		return []rule{{"*", false}, {match, true}}
	}
	return nil
}

// pattern finds a match that fits all names of in and none of out: a dotted
// prefix, a part of the name, or the start of a part up to an underscore.
func pattern(in, out []param) string {
	if prefix := modulePrefix(in); plain(prefix) {
		head := prefix + "."
		if separates(in, out, func(name string) bool { return strings.HasPrefix(name, head) }) {
			return head + "*"
		}
	}
	for _, word := range words(in[0].name) {
		if separates(in, out, func(name string) bool { return strings.Contains(name, word) }) {
			return "*" + word + "*"
		}
	}
	return ""
}

func separates(in, out []param, fits func(name string) bool) bool {
	for _, p := range in {
		if !fits(p.name) {
			return false
		}
	}
	for _, p := range out {
		if fits(p.name) {
			return false
		}
	}
	return true
}

// words lists what a pattern may look for: each part of a name, and its start up
// to an underscore ("lora_" of "lora_A").
func words(name string) []string {
	var list []string
	for _, part := range strings.Split(name, ".") {
		if !plain(part) || isIndex(part) {
			continue
		}
		list = append(list, part)
		if cut := strings.LastIndexByte(part, '_'); cut > 0 {
			list = append(list, part[:cut+1])
		}
	}
	return list
}

// plain reports whether a pattern can hold the text: it has no character that
// means something in a pattern or a template.
func plain(text string) bool { return text != "" && !strings.ContainsAny(text, "*{}") }

// frozenInstances counts the instances in which parameter k is frozen.
func (p piece) frozenInstances(k int) int {
	n := 0
	for _, instance := range p.instances {
		if instance[k].trainable() && instance[k].frozen {
			n++
		}
	}
	return n
}

// freeze marks the lines that are frozen in all instances and returns overrides
// for the other instances.
func (b *block) freeze() ([]rule, error) {
	for k := range b.lines {
		b.lines[k].frozenHere = b.piece.frozenInstances(k) == b.piece.len()
	}
	var rules []rule
	for k, instance := range b.piece.instances {
		own, err := b.freezeInstance(k, instance)
		if err != nil {
			return nil, err
		}
		rules = append(rules, own...)
	}
	return rules, nil
}

func (b *block) freezeInstance(k int, instance []param) ([]rule, error) {
	var rules []rule
	whole := true
	for j, p := range instance {
		if !p.trainable() {
			continue
		}
		if !p.frozen {
			whole = false
		} else if !b.lines[j].frozenHere {
			rules = append(rules, rule{p.name, false})
			if !plain(p.name) {
				return nil, fmt.Errorf("parameter %q is frozen in some layers only, which no pattern can say of a name with *, { or }", p.name)
			}
		}
	}
	if whole && len(rules) > 1 {
		return []rule{{b.piece.prefix(k) + "*", false}}, nil
	}
	return rules, nil
}
