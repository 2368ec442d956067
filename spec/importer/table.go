package importer

import (
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// table is a parameter table as written:
//
//	{"model": "gpt2", "source": "...", "total_params": 124439808, "total_bytes": 497759232,
//	 "tied": [[alias, owner], ...],
//	 "buffers": [[name, shape, dtype, stored in the file], ...],
//	 "params": [[name, shape, dtype, requires_grad], ...]}
//
// The parameters stand in registration order, aliases among them; the totals
// count aliases once and are checked where they are given. Other keys are
// ignored.
type table struct {
	source
	from        string
	tied        [][2]string
	totalParams int64
	totalBytes  int64
}

// parseTable reads a parameter table.
func parseTable(text []byte) (*source, error) {
	const what = "parameter table"
	r, err := newJSONReader(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	t := &table{totalParams: -1, totalBytes: -1}
	if err := r.object(what, func(key string) error { return t.field(r, key) }); err != nil {
		return nil, err
	}
	if err := r.end(what); err != nil {
		return nil, err
	}
	if err := t.tie(); err != nil {
		return nil, err
	}
	t.origin = "a parameter table"
	if t.from != "" {
		t.origin += " (" + t.from + ")"
	}
	return &t.source, t.checkTotals()
}

func (t *table) field(r *jsonReader, key string) (err error) {
	switch key {
	case "model":
		t.model, err = r.str(key)
	case "source":
		// The first clause says what was read; the rest is about doubts.
		t.from, err = r.str(key)
		t.from, _, _ = strings.Cut(t.from, ";")
		t.from = strings.Join(strings.Fields(t.from), " ")
	case "total_params":
		t.totalParams, err = r.count(key)
	case "total_bytes":
		t.totalBytes, err = r.count(key)
	case "tied":
		err = r.array(key, func() error { return t.readTie(r) })
	case "buffers":
		err = r.array(key, func() error { return t.readBuffer(r) })
	case "params":
		err = r.array(key, func() error { return t.readParam(r) })
	default:
		err = r.skip(key)
	}
	return err
}

func (t *table) readTie(r *jsonReader) error {
	what := fmt.Sprintf("tied[%d]", len(t.tied))
	var names []string
	err := r.array(what, func() error {
		name, err := r.str(what)
		names = append(names, name)
		return err
	})
	if err != nil {
		return err
	}
	if len(names) != 2 {
		return fmt.Errorf("%s: %d names: expected 2, the alias and its owner", what, len(names))
	}
	t.tied = append(t.tied, [2]string{names[0], names[1]})
	return nil
}

// row is [name, shape, dtype, flag], the form of parameters and buffers.
type row struct {
	name  string
	shape []int64
	dtype string
	flag  bool
}

func readRow(r *jsonReader, what string) (row, error) {
	var w row
	column := 0
	err := r.array(what, func() (err error) {
		switch column {
		case 0:
			w.name, err = r.str(what + " name")
		case 1:
			w.shape, err = r.counts(fmt.Sprintf("%s %q shape", what, w.name))
		case 2:
			w.dtype, err = r.str(fmt.Sprintf("%s %q dtype", what, w.name))
		case 3:
			w.flag, err = r.boolean(fmt.Sprintf("%s %q flag", what, w.name))
		default:
			err = fmt.Errorf("%s %q: more than 4 columns", what, w.name)
		}
		column++
		return err
	})
	if err == nil && column < 4 {
		err = fmt.Errorf("%s %q: %d columns: expected name, shape, dtype and a flag", what, w.name, column)
	}
	return w, err
}

func (t *table) readBuffer(r *jsonReader) error {
	w, err := readRow(r, fmt.Sprintf("buffers[%d]", len(t.buffers)))
	t.buffers = append(t.buffers, buffer{w.name, w.shape, w.dtype})
	return err
}

func (t *table) readParam(r *jsonReader) error {
	w, err := readRow(r, fmt.Sprintf("params[%d]", len(t.params)))
	if err != nil {
		return err
	}
	// Tables write f8_e4m3 where a spec says f8e4m3.
	d, err := dtype.Parse(strings.Replace(w.dtype, "f8_", "f8", 1))
	if err != nil {
		return fmt.Errorf("parameter %q: dtype %s is not supported", w.name, printable(w.dtype))
	}
	t.params = append(t.params, param{name: w.name, shape: w.shape, dtype: d, frozen: !w.flag})
	return nil
}

// tie enters the list of ties at the parameters.
func (t *table) tie() error {
	place := make(map[string]int, len(t.params))
	for i, p := range t.params {
		place[p.name] = i
	}
	for _, pair := range t.tied {
		i, ok := place[pair[0]]
		if !ok {
			return fmt.Errorf("tied: the alias %q is not among the parameters", pair[0])
		}
		if t.params[i].tiedTo != "" {
			return fmt.Errorf("tied: the alias %q comes twice", pair[0])
		}
		t.params[i].tiedTo = pair[1]
	}
	return nil
}

// checkTotals compares the parameters with the sums that the table states.
func (t *table) checkTotals() error {
	sum, err := t.totals()
	if err != nil {
		return err
	}
	if t.totalParams >= 0 && t.totalParams != sum.elements {
		return fmt.Errorf("total_params is %d, the parameters add up to %d: the table is incomplete or damaged", t.totalParams, sum.elements)
	}
	if t.totalBytes >= 0 && t.totalBytes != sum.bytes {
		return fmt.Errorf("total_bytes is %d, the parameters add up to %d: the table is incomplete or damaged", t.totalBytes, sum.bytes)
	}
	return nil
}
