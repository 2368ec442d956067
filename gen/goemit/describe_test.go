package goemit

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

const describeMain = `package main

import (
	"encoding/json"
	"os"

	"trainer/odd"
)

func main() {
	b, err := json.Marshal(odd.Descriptor())
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(b)
}
`

func TestAGeneratedPackageVetsRunsAndDescribesThePlan(t *testing.T) {
	p := odd().plan(t)
	files := emitKernels(t, p, "an image")
	dir := module(t, map[string][]output.File{"odd": files, "describe": {{Name: "main.go", Content: []byte(describeMain)}}})
	if out, err := goTool(t, dir, "vet", "./odd"); err != nil {
		t.Fatalf("vet: %v\n%s", err, out)
	}
	program := filepath.Join(dir, "program")
	if out, err := goTool(t, dir, "build", "-o", program, "./describe"); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	got, err := command(t, program).Output()
	if err != nil {
		t.Fatal(err)
	}
	compareDescriptors(t, got, map[string]any{
		"Model": "odd", "Package": "odd", "ModelHash": p.Hashes.Model, "Layout": p.Layout,
		"Code": device.Code{Package: "odd", Command: "go tool shardgen generate odd.yaml", Source: cudaSource, Fatbin: text(t, files, fatbin.FileName)},
		"Worlds": []map[string]any{
			{"LayoutHash": "1a1", "PlanHash": "91a1", "RestBytes": p.Worlds[0].Placement.RestBytes(), "PeakBytes": p.Worlds[0].Placement.PeakBytes()},
			{"LayoutHash": "1a3", "PlanHash": "91a3", "RestBytes": p.Worlds[1].Placement.RestBytes(), "PeakBytes": p.Worlds[1].Placement.PeakBytes()},
			{"LayoutHash": "1a8", "PlanHash": "91a8", "RestBytes": p.Worlds[2].Placement.RestBytes(), "PeakBytes": p.Worlds[2].Placement.PeakBytes()},
		},
	})
}

// compareDescriptors compares by JSON, in which floats are exact; a nil slice
// is an empty one.
func compareDescriptors(t *testing.T, got []byte, want map[string]any) {
	t.Helper()
	encoded, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := normal(t, got), normal(t, encoded); a != b {
		t.Errorf("the package says\n%s\nthe plan\n%s", a, b)
	}
}

// normal sorts keys and makes no difference between null and [].
func normal(t *testing.T, encoded []byte) string {
	t.Helper()
	var value any
	decoder := json.NewDecoder(strings.NewReader(string(encoded)))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), ": null", ": []")
}
