package spec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Limits on a spec file. They leave room for any hand-written or imported
// model, and bound the work that a hostile file can cause.
const (
	maxSourceBytes   = 4 << 20
	maxSourceDepth   = 1000 // brackets open at once in the text, a rough count
	maxDepth         = 64   // maps and lists inside each other, aliases followed
	maxExpandedNodes = 1_000_000
	maxNameBytes     = 4096
	maxDiagnostics   = 500
	maxFound         = 2 * maxDiagnostics // kept until they are sorted; repetitions are dropped then
)

const byteOrderMark = "\ufeff"

// load turns the text into the root node of its only document. It returns nil
// after reporting why there is none.
func (w *walker) load(src []byte) *yaml.Node {
	src = bytes.TrimPrefix(src, []byte(byteOrderMark))
	if !w.checkText(src) {
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(src))
	root, err := decode(decoder)
	switch {
	case errors.Is(err, io.EOF):
		w.report(Errorf(Pos{1, 1}, CodeEmptySpec, "the file holds no spec").
			WithHint("`shardgen init` writes a first one"))
		return nil
	case err != nil:
		w.syntax(src, err)
		return nil
	}
	w.checkEnd(src, decoder)
	survey := survey{w: w, known: map[*yaml.Node]extent{}}
	if _, ok := survey.visit(root); !ok {
		return nil
	}
	return root
}

// checkText refuses what must not reach the YAML parser at all.
func (w *walker) checkText(src []byte) bool {
	if len(src) > maxSourceBytes {
		w.report(Errorf(Pos{1, 1}, CodeTooLarge, "the file has %d bytes, at most %d are read", len(src), maxSourceBytes).
			WithHint("say layers that are alike once, with `repeat`"))
		return false
	}
	if at := invalidUTF8(src); at >= 0 {
		w.report(Errorf(position(src, at), CodeNotUTF8, "byte 0x%02x is not UTF-8 text", src[at]).
			WithHint("save the file as UTF-8"))
		return false
	}
	if n := separators(src); n > maxExpandedNodes {
		w.report(Errorf(Pos{1, 1}, CodeTooLarge, "the file has about %d values, at most %d are read", n, maxExpandedNodes).
			WithHint("say layers that are alike once, with `repeat`"))
		return false
	}
	if at := tooDeep(src); at >= 0 {
		w.report(Errorf(position(src, at), CodeTooDeep, "more than %d brackets are open here", maxSourceDepth).
			WithHint("close them: a spec needs a handful of levels"))
		return false
	}
	return true
}

// separators counts what stands between values, to know roughly how many the
// YAML parser would make.
func separators(src []byte) (n int) {
	for _, c := range src {
		switch c {
		case ',', ':', '[', '{', '\n':
			n++
		}
	}
	return n
}

func invalidUTF8(src []byte) int {
	for at := 0; at < len(src); {
		r, size := utf8.DecodeRune(src[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

// tooDeep returns the offset of the first bracket beyond the limit, or -1. It
// takes brackets in quotes for real ones and skips comments, which is close
// enough: the YAML parser has a limit of its own behind this one.
func tooDeep(src []byte) int {
	depth, comment := 0, false
	for at, c := range src {
		switch {
		case c == '\n':
			comment = false
		case comment:
		case c == '#':
			comment = at == 0 || src[at-1] == ' ' || src[at-1] == '\n'
		case c == '[' || c == '{':
			if depth++; depth > maxSourceDepth {
				return at
			}
		case c == ']' || c == '}':
			depth = max(0, depth-1)
		}
	}
	return -1
}

// position turns a byte offset into a place.
func position(src []byte, at int) Pos {
	before := src[:at]
	start := bytes.LastIndexByte(before, '\n') + 1
	return Pos{Line: bytes.Count(before, []byte("\n")) + 1, Col: utf8.RuneCount(before[start:]) + 1}
}

// decode reads the next document. The YAML parser panics on a few inputs that
// it takes for its own faults; they become errors here.
func decode(decoder *yaml.Decoder) (root *yaml.Node, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("yaml: %v", fault)
		}
	}()
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	return document.Content[0], nil
}

// checkEnd refuses anything after the first document.
func (w *walker) checkEnd(src []byte, decoder *yaml.Decoder) {
	second, err := decode(decoder)
	switch {
	case errors.Is(err, io.EOF):
	case err != nil:
		w.syntax(src, err)
	default:
		w.report(Errorf(place(second), CodeSecondDocument, "a second document starts here, a file holds one spec").
			WithHint("give each model a file of its own"))
	}
}

var (
	syntaxForm = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	anchorForm = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
	// The YAML parser counts lines from 0 in these messages, from 1 in others.
	zeroBased = regexp.MustCompile("^did not find expected (key|node content|'-' indicator|',' or|<)")
)

// syntax reports an error of the YAML parser, which says at most the line.
func (w *walker) syntax(src []byte, err error) {
	parts := syntaxForm.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if parts == nil {
		parts = []string{"", "", err.Error()}
	}
	if name := anchorForm.FindStringSubmatch(parts[2]); name != nil {
		pos := position(src, max(0, bytes.Index(src, []byte("*"+name[1]))))
		w.report(Errorf(pos, CodeUnknownAnchor, "no anchor `&%s` stands before this alias", name[1]).
			WithHint("define it above, under a top-level key that starts with `x-`"))
		return
	}
	line, _ := strconv.Atoi(parts[1]) // 0 where it is not said
	if zeroBased.MatchString(parts[2]) {
		line++
	}
	at := lineStart(src, max(1, line))
	if key, word, col := unquotedBraces(sourceLines(src)[at.Line-1]); word != "" {
		w.report(Errorf(Pos{Line: at.Line, Col: col}, CodeYAMLSyntax, "this is not YAML: in %s the braces begin a map, since no quotes are around it", shown(word)).
			WithHint("quote it: %s\"%s\"", key, word))
		return
	}
	w.report(Errorf(at, CodeYAMLSyntax, "this is not YAML: %s", parts[2]).
		WithHint("look at the indentation, quotes and brackets of this line and those below"))
}

var (
	quotedOrComment = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'|(?:^|\s)#.*`)
	// A placeholder with at least one character of a name on one of its sides,
	// and the key in front of it.
	bracedWord = regexp.MustCompile(`(\w+: +)?((?:[\w./-]+\{\w+\}|\{\w+\}[\w./-])[\w./{}-]*)`)
)

// unquotedBraces finds the first word of a line that holds a placeholder and is
// not quoted, the key that it belongs to, and the column where it starts.
func unquotedBraces(line string) (key, word string, col int) {
	bare := quotedOrComment.ReplaceAllStringFunc(line, func(s string) string { return strings.Repeat(" ", len(s)) })
	found := bracedWord.FindStringSubmatchIndex(bare)
	if found == nil {
		return "", "", 0
	}
	if found[2] >= 0 {
		key = line[found[2]:found[3]]
	}
	word = line[found[4]:found[5]]
	for strings.Count(word, "}") > strings.Count(word, "{") { // those behind close the maps around it
		word = strings.TrimSuffix(word, "}")
	}
	return key, word, utf8.RuneCountInString(line[:found[4]]) + 1
}

// lineStart is the place of the first character of a line, or where there is
// only blank space, of a line before it.
func lineStart(src []byte, line int) Pos {
	lines := sourceLines(src)
	line = min(line, len(lines))
	for line > 1 && strings.TrimSpace(lines[line-1]) == "" {
		line--
	}
	text := lines[line-1]
	return Pos{Line: line, Col: len(text) - len(strings.TrimLeft(text, " ")) + 1}
}

// textPerNode is how many bytes of text count as one more value, so that many
// aliases of a long text are a bomb too.
const textPerNode = 256

// extent is how much a node stands for once its aliases are followed.
type extent struct{ nodes, depth int64 }

// survey checks the shape of the tree before it is walked: what it expands to,
// and that maps are maps in the sense of the language.
type survey struct {
	w     *walker
	known map[*yaml.Node]extent // the zero extent marks a node that is being visited
}

// visit reports false after a fault that makes walking the tree unsafe. Every
// node is visited once, since an anchor stands before its aliases.
func (s *survey) visit(n *yaml.Node) (extent, bool) {
	if n.Kind == yaml.AliasNode {
		return s.alias(n)
	}
	s.known[n] = extent{}
	s.checkNode(n)
	total := extent{nodes: 1 + int64(len(n.Value))/textPerNode}
	for _, child := range n.Content {
		inner, ok := s.visit(child)
		if !ok {
			return extent{}, false
		}
		total.nodes += inner.nodes
		total.depth = max(total.depth, inner.depth)
		if total.nodes > maxExpandedNodes {
			s.w.fault(child, CodeAliasBomb, "with its aliases followed the file has more than %d values here", maxExpandedNodes).
				fix("write the values out, or use a repeat")
			return extent{}, false
		}
	}
	if n.Kind != yaml.ScalarNode {
		total.depth++
	}
	if total.depth > maxDepth {
		s.w.fault(n, CodeTooDeep, "more than %d maps and lists lie inside each other here", maxDepth).fix("a spec needs a handful of levels")
		return extent{}, false
	}
	s.known[n] = total
	return total, true
}

func (s *survey) alias(n *yaml.Node) (extent, bool) {
	total := s.known[n.Alias]
	if total.nodes == 0 {
		s.w.fault(n, CodeAliasCycle, "alias `*%s` lies inside the value that it stands for", n.Value).fix("remove the alias")
		return extent{}, false
	}
	return total, true
}

func (s *survey) checkNode(n *yaml.Node) {
	if n.Style&yaml.TaggedStyle != 0 {
		s.w.fault(n, CodeExplicitTag, "tag `%s` is not part of the language", n.Tag).fix("remove the tag")
	}
	if n.Kind == yaml.MappingNode {
		s.checkKeys(n)
	}
}

// checkKeys refuses keys that are no text, the same key twice, and a second
// merge key or one that merges no map.
func (s *survey) checkKeys(n *yaml.Node) {
	first := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		key, node := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			s.w.fault(key, CodeWrongKind, "a key must be plain text, not %s", kindWords(key)).fix("write a name as the key")
			continue
		}
		if isMerge(key) {
			s.checkMerge(node)
		}
		name := keyName(key)
		if before := first[name]; before == nil {
			first[name] = key
		} else if isMerge(key) {
			s.w.fault(key, CodeMergeKey, "a second merge key, the first is in line %d", before.Line).
				fix("merge one map, and let it merge the next")
		} else {
			s.w.fault(key, CodeDuplicateKey, "key `%s` is given twice, first in line %d", key.Value, before.Line).
				fix("remove one of the two")
		}
	}
}

func (s *survey) checkMerge(node *yaml.Node) {
	if target := follow(node); target.Kind != yaml.MappingNode {
		s.w.fault(node, CodeMergeKey, "a merge key takes one map, not %s", kindWords(target)).
			fix("write `<<: *name`, where `&name` marks a map under a top-level key that starts with `x-`")
	}
}

// keyName tells a merge key from the text "<<".
func keyName(key *yaml.Node) string {
	if isMerge(key) {
		return "\x00merge"
	}
	return key.Value
}

func isMerge(key *yaml.Node) bool { return key.ShortTag() == "!!merge" }

// follow returns what an alias stands for, and any other node itself.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func place(n *yaml.Node) Pos { return Pos{Line: n.Line, Col: n.Column} }
