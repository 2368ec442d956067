package spec

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
)

// schema is a JSON Schema object. Encoding sorts its keys, so that the text is
// the same on every run.
type schema map[string]any

// Schema returns the JSON Schema (draft 2020-12) of a spec, made from the
// parser's own tables. Keys that are not built yet are left out, and unknown
// keys are refused. It cannot state the rules that span several keys.
func Schema() []byte {
	root := rootTable.schema()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "shardgen model spec"
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(root); err != nil {
		panic(err) // maps, lists, texts and numbers always encode
	}
	return text.Bytes()
}

// schema of a map: its keys, their defaults, and no others.
func (t *table[M]) schema() schema {
	properties, required := schema{}, []string{}
	for _, f := range t.fields {
		if f.later {
			continue
		}
		properties[f.key] = f.property()
		if f.required {
			required = append(required, f.key)
		}
	}
	s := schema{"type": "object", "description": t.doc, "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	if t.holders {
		s["patternProperties"] = schema{"^x-": true}
	}
	return s
}

func (f field[M]) property() schema {
	s := f.schema()
	s["description"] = f.doc
	if f.fallback != "" {
		s["default"] = defaultValue(f.fallback)
	}
	return s
}

// defaultValue gives a default its JSON type.
func defaultValue(written string) any {
	if n, err := strconv.ParseInt(written, 10, 64); err == nil {
		return n
	}
	if written == "true" || written == "false" {
		return written == "true"
	}
	return written
}

func listSchema(item schema, least int) schema {
	s := schema{"type": "array", "items": item}
	if least > 0 {
		s["minItems"] = least
	}
	return s
}

func integerSchema(low, high int64) schema {
	s := schema{"type": "integer", "minimum": low}
	if high < math.MaxInt64 {
		s["maximum"] = high
	}
	return s
}

func sizeSchema() schema {
	return anyOf(integerSchema(0, math.MaxInt64), schema{"type": "string", "pattern": `^(0|[1-9][0-9]*)(KiB|MiB|GiB|TiB)$`})
}

func anyOf(forms ...schema) schema { return schema{"anyOf": forms} }
