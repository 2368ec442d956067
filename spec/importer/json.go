package importer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDocumentBytes bounds what an index or a table may unpack to. The largest
// public models stay below a tenth of it.
const maxDocumentBytes = 256 << 20

// readJSON returns the content of a JSON file, unpacked if its name ends in .gz.
func readJSON(f File) ([]byte, error) {
	if f.Size > maxDocumentBytes {
		return nil, fmt.Errorf("%d bytes: expected at most %d", f.Size, int64(maxDocumentBytes))
	}
	var r io.Reader = io.NewSectionReader(f.Data, 0, f.Size)
	if strings.HasSuffix(f.Name, ".gz") {
		unpacked, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("unpacking: %w", err)
		}
		r = unpacked
	}
	text, err := io.ReadAll(io.LimitReader(r, maxDocumentBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if len(text) > maxDocumentBytes {
		return nil, fmt.Errorf("unpacks to more than %d bytes", int64(maxDocumentBytes))
	}
	return text, nil
}

// jsonReader walks JSON token by token. Unlike decoding into a struct it sees
// duplicate keys (after unescaping), null where a value is due, and fractions
// where a count is due.
type jsonReader struct{ d *json.Decoder }

func newJSONReader(text []byte) (*jsonReader, error) {
	// The decoder would replace invalid bytes, so that two names become one.
	if !utf8.Valid(text) {
		return nil, errors.New("the JSON is not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return &jsonReader{d}, nil
}

func (r *jsonReader) token(what string) (json.Token, error) {
	t, err := r.d.Token()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: the JSON ends too early", what)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return t, nil
}

// describe says in a few characters what stands where something else is due.
func describe(t json.Token) string {
	switch v := t.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("%.40q", v)
	default:
		return fmt.Sprintf("%.40v", v)
	}
}

func (r *jsonReader) open(what string, bracket json.Delim, kind string) error {
	t, err := r.token(what)
	if err != nil {
		return err
	}
	if t != bracket {
		return fmt.Errorf("%s: expected %s, found %s", what, kind, describe(t))
	}
	return nil
}

// object reads an object and calls field behind each key; field must read the
// value. A key that comes twice is an error.
func (r *jsonReader) object(what string, field func(key string) error) error {
	if err := r.open(what, '{', "an object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for r.d.More() {
		t, err := r.token(what)
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("%s: expected a key, found %s", what, describe(t))
		}
		if seen[key] {
			return fmt.Errorf("%s: the key %q comes twice", what, key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	_, err := r.token(what)
	return err
}

// array reads an array and calls item before each element; item must read it.
func (r *jsonReader) array(what string, item func() error) error {
	if err := r.open(what, '[', "an array"); err != nil {
		return err
	}
	for r.d.More() {
		if err := item(); err != nil {
			return err
		}
	}
	_, err := r.token(what)
	return err
}

func (r *jsonReader) str(what string) (string, error) {
	t, err := r.token(what)
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("%s: expected a string, found %s", what, describe(t))
	}
	return s, nil
}

func (r *jsonReader) boolean(what string) (bool, error) {
	t, err := r.token(what)
	if err != nil {
		return false, err
	}
	b, ok := t.(bool)
	if !ok {
		return false, fmt.Errorf("%s: expected true or false, found %s", what, describe(t))
	}
	return b, nil
}

// count reads a whole number from 0 to 2^63-1, written without sign, point or
// exponent.
func (r *jsonReader) count(what string) (int64, error) {
	t, err := r.token(what)
	if err != nil {
		return 0, err
	}
	number, ok := t.(json.Number)
	if ok {
		// ParseUint takes digits only; one bit fewer keeps it within int64.
		if n, err := strconv.ParseUint(number.String(), 10, 63); err == nil {
			return int64(n), nil
		}
	}
	return 0, fmt.Errorf("%s: expected a whole number from 0 to 2^63-1, found %s", what, describe(t))
}

// maxDimensions bounds a shape. Tensor libraries end at 8 to 64.
const maxDimensions = 64

// counts reads a list of at most maxDimensions whole numbers.
func (r *jsonReader) counts(what string) ([]int64, error) {
	list := []int64{}
	err := r.array(what, func() error {
		if len(list) == maxDimensions {
			return fmt.Errorf("%s: more than %d numbers: expected at most that many dimensions", what, maxDimensions)
		}
		n, err := r.count(what)
		list = append(list, n)
		return err
	})
	return list, err
}

// skip reads one value of any kind and drops it.
func (r *jsonReader) skip(what string) error {
	var dropped json.RawMessage
	if err := r.d.Decode(&dropped); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// end makes sure that only white space follows.
func (r *jsonReader) end(what string) error {
	t, err := r.d.Token()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: behind the closing bracket: %w", what, err)
	}
	return fmt.Errorf("%s: expected nothing behind the closing bracket, found %s", what, describe(t))
}
