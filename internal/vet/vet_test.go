package vet

import (
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/packages"
)

// all reports what the analyzers report, so that the packages under
// testdata are loaded once.
var all = &analysis.Analyzer{
	Name:     "all",
	Doc:      "run all analyzers of shardvet",
	Requires: []*analysis.Analyzer{ctrlflow.Analyzer, borrowAnalyzer},
	Run: func(p *analysis.Pass) (any, error) {
		for _, a := range Analyzers() {
			if _, err := a.Run(p); err != nil {
				return nil, err
			}
		}
		return nil, nil
	},
}

// TestFaultsAreReportedAndCorrectCodeIsNot compares with the "want" comments of
// the packages; clean, composed and pointed have none.
func TestFaultsAreReportedAndCorrectCodeIsNot(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), all, "blocks", "composed", "gradients", "inside", "params", "passes", "pointed", "clean", "helpers", "tiny")
}

func TestAnalyzersAreValid(t *testing.T) {
	if err := analysis.Validate(Analyzers()); err != nil {
		t.Error(err)
	}
}

// TestTypesOfGeneratedPackagesAreRecognised keeps the analyzers in step with the
// generator.
func TestTypesOfGeneratedPackagesAreRecognised(t *testing.T) {
	loaded, err := packages.Load(&packages.Config{Mode: packages.NeedTypes}, "github.com/shardgen/shardgen/generated/tiny")
	if err != nil {
		t.Fatal(err)
	}
	scope := loaded[0].Types.Scope()
	for name, want := range map[string]kind{
		"H": block, "HGrads": grads, "Embed": block, "EmbedGrads": grads, "ForwardPass": pass, "BackwardPass": pass,
		"Model": none, "Options": none,
	} {
		o := scope.Lookup(name)
		if o == nil {
			t.Errorf("tiny has no %s", name)
			continue
		}
		if got := kindOf(o.Type()); got != want {
			t.Errorf("tiny.%s is of kind %d, want %d", name, got, want)
		}
	}
}
