package gpucheck

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/shardgen/shardgen/internal/devicetest"
)

// Report is all that a run found out.
type Report struct {
	Machine Machine `json:"machine"`
	Quick   bool    `json:"quick"` // with small sizes: no measure of speed
	Checks  []Check `json:"checks"`
	Buses   []Bus   `json:"buses,omitempty"`
	Rates   []Rate  `json:"rates,omitempty"`
	Costs   []Cost  `json:"costs,omitempty"`
	Failed  int     `json:"failed"` // checks
	Seconds float64 `json:"seconds"`
}

// Machine is what was tested.
type Machine struct {
	Device            string `json:"device"`
	ComputeCapability string `json:"compute_capability"`
	Multiprocessors   int    `json:"multiprocessors"`
	MemoryBytes       int64  `json:"memory_bytes"`
	FreeBytes         int64  `json:"free_bytes"`
	CUDA              string `json:"cuda"`           // that the driver supports
	DriverVersion     string `json:"driver_version"` // such as 580.95.05; empty where the driver does not tell it
	Driver            string `json:"driver"`         // what it says of itself, if anything
	GPUs              int    `json:"gpus"`
	NCCL              string `json:"nccl"` // its version, or why there is none
}

// Status is what became of a check.
type Status string

// What becomes of checks.
const (
	OK      Status = "ok"
	Failed  Status = "FAILED"
	Skipped Status = "skipped" // something is missing that the detail names
)

// Check is one thing that is right or wrong.
type Check struct {
	Section string              `json:"section"`
	Name    string              `json:"name"`
	Status  Status              `json:"status"`
	Detail  string              `json:"detail"`
	Kernels []devicetest.Result `json:"kernels,omitempty"`
	Seconds float64             `json:"seconds"`
}

// Rate is the bandwidth of a kernel.
type Rate struct {
	Kernel          string  `json:"kernel"`
	Bytes           int64   `json:"bytes"`              // read and written by a launch
	BytesPerSecond  float64 `json:"bytes_per_second"`   // median
	CopyBytesPerSec float64 `json:"copy_bytes_per_sec"` // of the copies in between, median
	Share           float64 `json:"share"`              // median of the kernel's over the copy's beside it
	Goal            float64 `json:"goal,omitempty"`     // least share; 0 for none
}

// verdict says whether the goal is met.
func (r *Rate) verdict() string {
	switch {
	case r.Goal == 0:
		return ""
	case r.Share >= r.Goal:
		return fmt.Sprintf("goal %.2f met", r.Goal)
	}
	return fmt.Sprintf("goal %.2f missed", r.Goal)
}

// Bus is the bandwidth of a collective between GPUs.
type Bus struct {
	Operation            string  `json:"operation"`
	GPUs                 int     `json:"gpus"`
	Bytes                int64   `json:"bytes"`                   // of what is gathered or summed
	AlgorithmBytesPerSec float64 `json:"algorithm_bytes_per_sec"` // Bytes over the time, median
	BusBytesPerSec       float64 `json:"bus_bytes_per_sec"`       // (GPUs-1)/GPUs of that
}

// Cost is the host's time for an operation.
type Cost struct {
	Operation    string  `json:"operation"`
	Microseconds float64 `json:"microseconds"` // median
}

// write writes the report as JSON.
func (r *Report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func (m *Machine) print(out io.Writer) {
	row := func(name, format string, values ...any) {
		_, _ = fmt.Fprintf(out, "%-20s %s\n", name, fmt.Sprintf(format, values...))
	}
	row("device", "%s, one of %d", m.Device, m.GPUs)
	row("compute capability", "%s, %d multiprocessors", m.ComputeCapability, m.Multiprocessors)
	row("memory", "%s, %s free", size(m.MemoryBytes), size(m.FreeBytes))
	row("driver", "%s, CUDA %s%s", cmp.Or(m.DriverVersion, "version unknown"), m.CUDA, parenthesized(m.Driver))
	row("NCCL", "%s", m.NCCL)
	_, _ = fmt.Fprintln(out)
}

func parenthesized(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func (c *Check) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "%-8s %-8s %-14s %6.1f s  %s\n", c.Status, c.Section, c.Name, c.Seconds, strings.ReplaceAll(c.Detail, "\n", "\n"+strings.Repeat(" ", 43)))
}

func (r *Rate) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "%-8s %-40s %9s %8.1f GB/s  %5.2f of a copy's %8.1f  %s\n",
		"rate", r.Kernel, size(r.Bytes), r.BytesPerSecond/1e9, r.Share, r.CopyBytesPerSec/1e9, r.verdict())
}

func (b *Bus) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "%-8s %-40s %9s %8.1f GB/s  (%.1f GB/s of the algorithm)\n",
		"bus", fmt.Sprintf("%s between %d GPUs", b.Operation, b.GPUs), size(b.Bytes), b.BusBytesPerSec/1e9, b.AlgorithmBytesPerSec/1e9)
}

func (c *Cost) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "%-8s %-40s %9.2f us\n", "cost", c.Operation, c.Microseconds)
}

// size writes bytes in the unit that fits.
func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	x, u := float64(bytes), 0
	for ; x >= 1024 && u < len(units)-1; u++ {
		x /= 1024
	}
	return fmt.Sprintf("%.4g %s", x, units[u])
}
