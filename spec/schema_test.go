package spec

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("spec.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := compiler.Compile("spec.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plainValue decodes YAML to what JSON has.
func plainValue(t *testing.T, src string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(src), &v); err != nil {
		t.Fatal(err)
	}
	return jsonValue(v)
}

func jsonValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			v[key] = jsonValue(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = jsonValue(inner)
		}
	case time.Time:
		return v.String()
	}
	return v
}

func TestTheSchemaAcceptsEverySample(t *testing.T) {
	s := compiled(t)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(plainValue(t, string(src))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		parseFile(t, filepath.Base(name))
	}
}

func TestTheSchemaRefusesWhatTheTablesRefuse(t *testing.T) {
	s := compiled(t)
	for _, group := range [][]refusal{misspeltKeys, notBuilt, unknownWords, boolForms(), missingKeys, numberFormRefusals} {
		for _, r := range group {
			src, _ := r.text()
			if beyondSchema(r) {
				continue
			}
			if err := s.Validate(plainValue(t, src)); err == nil {
				t.Errorf("accepted:\n%s", src)
			}
		}
	}
}

// beyondSchema tells refusals that depend on how a value is written, which is
// lost once YAML is decoded, or on two keys at once.
func beyondSchema(r refusal) bool {
	switch r.code {
	case CodeNumberForm:
		return true
	case CodeMissingKey:
		return strings.Contains(r.say, "tied_to") || strings.Contains(r.say, "uses") || strings.Contains(r.say, "only has")
	case CodeBoolForm:
		return strings.HasSuffix(r.src, "True}]}") || strings.HasSuffix(r.src, "TRUE}]}")
	}
	return strings.Contains(r.src, "~: 1") // no text as a key
}

func TestSchemaAndReferenceAreTheSameOnEveryRun(t *testing.T) {
	schema, reference := Schema(), Reference()
	for range 20 {
		if !bytes.Equal(schema, Schema()) || !bytes.Equal(reference, Reference()) {
			t.Fatal("the text differs between two runs")
		}
	}
}

func TestTheReferenceNamesEveryKeyAndCode(t *testing.T) {
	page := string(Reference())
	for _, w := range vocabulary() {
		if !strings.Contains(page, "| `"+w.key+"` |") {
			t.Errorf("key %s of %s is missing", w.key, w.table)
		}
	}
	for _, code := range Codes() {
		if !strings.Contains(page, "| `"+code+"` |") {
			t.Errorf("code %s is missing", code)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	for _, line := range strings.Split(string(Reference()), "\n") {
		if strings.HasPrefix(line, "|") && strings.Contains(line, "|  |") {
			t.Errorf("empty cell: %s", line)
		}
	}
}
