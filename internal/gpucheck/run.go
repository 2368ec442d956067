package gpucheck

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/comm/nccl"
	"github.com/shardgen/shardgen/runtime/device/cuda"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // a check failed
	exitUsage  = 2
	exitNoGPU  = 3 // there is no driver or no GPU that kernels can run on
)

// grace is how long a run may take to end behind its deadline. A driver that
// does not return by then is left behind.
const grace = 20 * time.Second

// options are the program's flags.
type options struct {
	device   int
	quick    bool
	json     string
	timeout  time.Duration
	packages []string
	sections []string
}

// section is a part of a run.
type section struct {
	name string
	do   func(*checker, context.Context)
}

// sections are the parts of a run, in their order.
var sections = []section{
	{"kernels", (*checker).kernels},
	{"far", (*checker).far},
	{"model", (*checker).models},
	{"nccl", (*checker).collectives},
	{"rates", (*checker).bandwidth},
	{"costs", (*checker).hostCost},
}

func sectionNames() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("gpucheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.device, "device", 0, "number of the GPU that is checked; models and collectives run on the first ones")
	flags.BoolVar(&o.quick, "quick", false, "take small sizes: all is checked but what only large ones show, and nothing is measured that means something")
	flags.StringVar(&o.json, "json", "", "also write the report into this `file`")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Minute, "fail what is not done after this time")
	names := flags.String("packages", "", "check only these generated packages, separated by commas")
	parts := flags.String("sections", strings.Join(sectionNames(), ","), "do only these parts, separated by commas")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *names != "" {
		o.packages = strings.Split(*names, ",")
	}
	o.sections = strings.Split(*parts, ",")
	err := o.validate(flags.Args())
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "gpucheck:", err)
	}
	return o, err
}

func (o *options) validate(rest []string) error {
	if len(rest) > 0 || o.timeout <= 0 {
		return fmt.Errorf("arguments %q and a timeout of %v: expected flags only, and a timeout above 0", rest, o.timeout)
	}
	known := sectionNames()
	for _, s := range o.sections {
		if !slices.Contains(known, s) {
			return fmt.Errorf("there is no section %q; there are %s", s, strings.Join(known, ", "))
		}
	}
	return nil
}

// Run runs the program with its arguments and returns its exit status: 0 where
// all checks are right, 1 where one fails, 2 for wrong arguments, 3 where there is
// no driver or no GPU that can be used.
func Run(args []string, stdout, stderr io.Writer) int { return run(packages(), args, stdout, stderr) }

func run(all []*shard.Descriptor, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return exitUsage
	}
	chosen, err := choose(all, o.packages)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "gpucheck:", err)
		return exitUsage
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), o.timeout, fmt.Errorf("not done within %v (flag -timeout)", o.timeout))
	defer cancel()
	c := &checker{options: o, packages: chosen, out: stdout, progress: stderr}
	done := make(chan int, 1)
	go func() { done <- c.all(ctx) }()
	return await(done, o.timeout+grace, stderr)
}

// await returns a run's exit status, or gives it up.
func await(done <-chan int, limit time.Duration, stderr io.Writer) int {
	select {
	case status := <-done:
		return status
	case <-time.After(limit):
		_, _ = fmt.Fprintf(stderr, "gpucheck: a call of the driver has not returned within %v; the run is given up\n", limit)
		return exitFailed
	}
}

// checker is one run.
type checker struct {
	options
	packages []*shard.Descriptor
	out      io.Writer // the table
	progress io.Writer // what went wrong outside of it

	gpu     *cuda.Device
	count   int   // GPUs
	noNCCL  error // why there is none
	modules []*module
	report  Report
}

// all runs everything and returns the exit status.
func (c *checker) all(ctx context.Context) int {
	begin := time.Now()
	if err := c.start(); err != nil {
		_, _ = fmt.Fprintln(c.progress, "gpucheck: no GPU to check:", err)
		return exitNoGPU
	}
	c.report.Machine.print(c.out)
	c.load()
	for _, s := range sections {
		if slices.Contains(c.sections, s.name) {
			s.do(c, ctx)
		}
	}
	c.check("end", "clean-up", func(*Check) error { return c.close() })
	c.report.Quick, c.report.Seconds = c.quick, time.Since(begin).Seconds()
	return c.conclude()
}

// start finds the GPU and what is around it.
func (c *checker) start() error {
	count, err := cuda.Devices()
	if err != nil {
		return err
	}
	if count == 0 {
		return errors.New("the driver sees no GPU; nvidia-smi shows those of this machine, CUDA_VISIBLE_DEVICES can hide them")
	}
	gpu, err := cuda.Open(c.device, cuda.Options{})
	if err != nil {
		return err
	}
	c.gpu, c.count, c.noNCCL = gpu, count, nccl.Available()
	return c.describe()
}

func (c *checker) describe() error {
	major, minor := c.gpu.ComputeCapability()
	free, total, err := c.gpu.MemoryBytes()
	v := c.gpu.DriverVersion()
	c.report.Machine = Machine{
		Device: c.gpu.Name(), ComputeCapability: fmt.Sprintf("%d.%d", major, minor), Multiprocessors: c.gpu.Multiprocessors(),
		MemoryBytes: total, FreeBytes: free, CUDA: fmt.Sprintf("%d.%d", v/1000, v%1000/10), GPUs: c.count, NCCL: c.ncclText(),
	}
	text, _ := os.ReadFile("/proc/driver/nvidia/version") // absent in some containers
	c.report.Machine.Driver, c.report.Machine.DriverVersion = driverText(string(text))
	return err
}

// ncclText is NCCL's version, or why there is none.
func (c *checker) ncclText() string {
	if c.noNCCL != nil {
		return c.noNCCL.Error()
	}
	version, err := nccl.Version()
	if err != nil {
		return err.Error()
	}
	return version
}

// driverText returns the first line of what the kernel's part of the driver says
// of itself, and the version in it, such as 580.95.05.
func driverText(text string) (line, version string) {
	line, _, _ = strings.Cut(text, "\n")
	words := strings.Fields(strings.TrimPrefix(line, "NVRM version:"))
	numeric := func(word string) bool { return strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" }
	if i := slices.IndexFunc(words, numeric); i >= 0 {
		version = words[i]
	}
	return strings.Join(words, " "), version
}

func (c *checker) close() error {
	var all []error
	for _, m := range c.modules {
		all = append(all, m.close())
	}
	return errors.Join(append(all, c.gpu.Close())...)
}

// check does something and notes what became of it. What do wants to tell it
// puts into the check.
func (c *checker) check(section, name string, do func(*Check) error) {
	k := Check{Section: section, Name: name, Status: OK}
	begin := time.Now()
	if err := do(&k); err != nil {
		k.Status, k.Detail = Failed, err.Error()
		c.report.Failed++
	}
	k.Seconds = time.Since(begin).Seconds()
	k.print(c.out)
	c.report.Checks = append(c.report.Checks, k)
}

// skip notes why something can't be checked here.
func (k *Check) skip(format string, arguments ...any) error {
	k.Status, k.Detail = Skipped, fmt.Sprintf(format, arguments...)
	return nil
}

// conclude writes the report and says how it ended.
func (c *checker) conclude() int {
	status := exitOK
	if c.report.Failed > 0 {
		status = exitFailed
	}
	_, _ = fmt.Fprintf(c.out, "\n%d of %d checks failed, %.0f s\n", c.report.Failed, len(c.report.Checks), c.report.Seconds)
	if c.json == "" {
		return status
	}
	if err := c.report.write(c.json); err != nil {
		_, _ = fmt.Fprintln(c.progress, "gpucheck: the report:", err)
		return exitFailed
	}
	return status
}
