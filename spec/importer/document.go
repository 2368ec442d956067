package importer

import (
	"bytes"
	"fmt"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/spec"
)

// document is a spec to be written.
type document struct {
	src     *source
	world   []int64
	totals  totals
	dtype   dtype.DType // the most frequent among the owners
	blocks  []block
	freezes []rule
}

func newDocument(src *source, world []int64) (*document, error) {
	sum, err := src.totals()
	if err != nil {
		return nil, err
	}
	d := &document{src: src, world: world, totals: sum, dtype: commonDType(src.params)}
	d.blocks = nameBlocks(splitBetween(findPieces(src.params, 0)), src.params)
	d.freezes, err = sayFrozen(d.blocks, src.params)
	return d, err
}

// commonDType returns the dtype of most parameters; of two, the one met first.
func commonDType(params []param) dtype.DType {
	counts := map[dtype.DType]int{}
	for _, p := range params {
		if p.tiedTo == "" {
			counts[p.dtype]++
		}
	}
	best := dtype.Invalid
	for _, p := range params {
		if counts[p.dtype] > counts[best] {
			best = p.dtype
		}
	}
	return best
}

// packageName is the language's default, the model's name in lower-case letters
// and digits, made a Go package name where that is none.
func packageName(model string) string {
	name := strings.Map(func(r rune) rune {
		r = unicode.ToLower(r)
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, model)
	if !token.IsIdentifier(name) {
		return "model" + name
	}
	return name
}

// yaml writes the spec. Keys at their defaults are left out, apart from package
// and dtype, which a reader looks for first.
func (d *document) yaml() []byte {
	var w bytes.Buffer
	fmt.Fprintf(&w, "# %s: %s parameters in %s tensors, %s bytes.\n", oneLine(d.src.model),
		thousands(d.totals.elements), thousands(d.totals.tensors), thousands(d.totals.bytes))
	fmt.Fprintf(&w, "# Imported from %s.\n", strings.TrimSuffix(oneLine(d.src.origin), "."))
	fmt.Fprintf(&w, "apiVersion: %s\nmodel: %s\npackage: %s\ndtype: %s\n",
		spec.APIVersion, scalar(d.src.model), scalar(packageName(d.src.model)), d.dtype)
	fmt.Fprintf(&w, "topology: {world: %s}\nblocks:\n", shapeText(d.world))
	for _, b := range d.blocks {
		d.writeBlock(&w, b)
	}
	if len(d.freezes) > 0 {
		w.WriteString("overrides:\n")
	}
	for _, r := range d.freezes {
		fmt.Fprintf(&w, "  - {match: %s, trainable: %t}\n", scalar(r.match), r.trainable)
	}
	return w.Bytes()
}

func (d *document) writeBlock(w *bytes.Buffer, b block) {
	fmt.Fprintf(w, "  - name: %s\n", scalar(b.name))
	switch p := b.piece; {
	case p.len() == 1:
	case p.first == 0:
		fmt.Fprintf(w, "    repeat: {%s: %d}\n", repeatVar, p.len())
	default:
		fmt.Fprintf(w, "    repeat: {%s: %d..%d}\n", repeatVar, p.first, p.last)
	}
	w.WriteString("    params:\n")
	width := 0
	for _, l := range b.lines {
		width = max(width, len([]rune(scalar(l.name))))
	}
	for _, l := range b.lines {
		name := scalar(l.name) + ","
		fmt.Fprintf(w, "      - {name: %-*s %s}\n", width+1, name, d.keys(l))
	}
}

// keys writes what a line says behind the name.
func (d *document) keys(l line) string {
	if l.tiedTo != "" {
		return "tied_to: " + scalar(l.tiedTo)
	}
	keys := "shape: " + shapeText(l.shape)
	if l.dtype != d.dtype {
		keys += ", dtype: " + l.dtype.String()
	}
	if l.frozenHere {
		keys += ", trainable: false"
	}
	return keys
}

// oneLine makes text fit for a comment.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

// thousands writes a count with commas: 124,439,808.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for k := len(text) - 3; k > 0; k -= 3 {
		text = text[:k] + "," + text[k:]
	}
	return text
}

var plainScalar = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*$`)

// yamlWords are plain words that some YAML reader takes for a bool or null.
var yamlWords = map[string]bool{
	"null": true, "true": true, "false": true, "yes": true, "no": true,
	"on": true, "off": true, "y": true, "n": true,
}

// scalar writes a string so that every YAML reader reads it back as that
// string, inside flow brackets too.
func scalar(s string) string {
	if plainScalar.MatchString(s) && !yamlWords[strings.ToLower(s)] {
		return s
	}
	return strconv.Quote(s)
}
