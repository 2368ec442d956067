package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// planLargest times the whole command that plans and generates Llama-3.1-405B.
func planLargest() ([]Result, error) {
	dir, err := os.MkdirTemp("", "shardgen-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "shardgen")
	build := exec.Command("go", "build", "-o", binary, "./cmd/shardgen")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building shardgen: %w\n%s", err, out)
	}
	var seconds, mebibytes []float64
	for i := range rounds {
		out := filepath.Join(dir, fmt.Sprintf("out%d", i))
		cmd := exec.Command(binary, "generate", "spec/models/llama-3.1-405b.yaml", "--out", out)
		begin := time.Now()
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("generating llama-3.1-405b: %w\n%s", err, text)
		}
		seconds = append(seconds, time.Since(begin).Seconds())
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			mebibytes = append(mebibytes, float64(usage.Maxrss)/1024)
		}
	}
	note := "plan and generate llama-3.1-405b for all its world sizes, 1,024 among them, as a process"
	results := []Result{{Name: "plan_405b_seconds", Ours: median(seconds), Unit: "s", Note: note}}
	if len(mebibytes) == rounds {
		results = append(results, Result{Name: "plan_405b_memory", Ours: median(mebibytes), Unit: "MiB", Note: "its largest resident memory"})
	}
	return results, nil
}
