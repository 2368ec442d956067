// Command bench measures what the documentation claims and writes
// bench/results.json. Every reference is measured in the same run, in turn with
// what it is compared to, and medians of nine are reported.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

// rounds is how often each pair is measured; an odd number has a median.
const rounds = 9

// Result is one line of the table. Ratio is Ours/Reference where there is a
// reference, and 0 otherwise.
type Result struct {
	Name      string   `json:"name"`
	Ours      float64  `json:"ours"`
	Reference float64  `json:"reference"`
	Ratio     float64  `json:"ratio"`
	Goal      *float64 `json:"goal,omitempty"` // what Ours should be at most; nil for none
	Unit      string   `json:"unit"`
	Note      string   `json:"note"`
}

// verdict says whether the goal is met.
func (r *Result) verdict() string {
	switch {
	case r.Goal == nil:
		return ""
	case r.Ours <= *r.Goal:
		return fmt.Sprintf("at most %.4g: met", *r.Goal)
	}
	return fmt.Sprintf("at most %.4g: missed", *r.Goal)
}

func main() {
	if err := run("bench/results.json"); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	var all []Result
	// planLargest comes first: a process that this one starts counts this one's
	// memory as its own until it runs.
	for _, measure := range []func() ([]Result, error){planLargest, gatherVersusCopy, gatherHost, gatherHostCUDA, gatherLocal} {
		results, err := measure()
		if err != nil {
			return err
		}
		all = append(all, results...)
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return table(all)
}

func table(all []Result) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "name\tours\treference\tratio\tgoal\tunit\tnote")
	for _, r := range all {
		fmt.Fprintf(w, "%s\t%.4g\t%.4g\t%.3f\t%s\t%s\t%s\n", r.Name, r.Ours, r.Reference, r.Ratio, r.verdict(), r.Unit, r.Note)
	}
	return w.Flush()
}

func median(x []float64) float64 {
	sorted := slices.Sorted(slices.Values(x))
	return sorted[len(sorted)/2]
}
