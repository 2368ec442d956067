package gpucheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/generated/tiny"
	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
)

// emulatedPackages returns the packages with the given names with kernels for the
// emulated GPU.
func emulatedPackages(t *testing.T, names ...string) (*emulated.Machine, []*shard.Descriptor) {
	t.Helper()
	m := emulated.Require(t)
	list, err := choose(packages(), names)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range list {
		own := *d
		own.Code = m.AddPackage(t, folder(d.Package), d.Code)
		list[i] = &own
	}
	return m, list
}

func folder(name string) string { return filepath.Join("..", "..", "generated", name) }

// output is what a run printed and reported.
type output struct {
	status         int
	stdout, stderr string
	report         Report
}

func runQuick(t *testing.T, list []*shard.Descriptor, args ...string) output {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.json")
	var stdout, stderr bytes.Buffer
	o := output{status: run(list, append([]string{"-quick", "-json", path}, args...), &stdout, &stderr)}
	o.stdout, o.stderr = stdout.String(), stderr.String()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &o.report)
	}
	if err != nil {
		t.Fatalf("%v\n%s%s", err, o.stdout, o.stderr)
	}
	return o
}

func TestAnEmulatedGPUPassesAllSections(t *testing.T) {
	m, list := emulatedPackages(t, "alldtypes", "tiny", "oddshapes")
	o := runQuick(t, list)
	if o.status != exitOK || o.stderr != "" || o.report.Failed != 0 {
		t.Errorf("status %d\n%s%s", o.status, o.stdout, o.stderr)
	}
	did := map[string]int{}
	for _, k := range o.report.Checks {
		did[k.Section+" "+string(k.Status)]++
	}
	for what, want := range map[string]int{"kernels ok": 3, "far ok": len(farChecks), "model ok": 6, "nccl ok": 7, "rates ok": 1, "costs ok": 2, "end ok": 1} {
		if did[what] != want {
			t.Errorf("%d times %q, want %d", did[what], what, want)
		}
	}
	if len(o.report.Rates) < 20 || len(o.report.Costs) != 3 || len(o.report.Buses) != 2 || o.report.Machine.GPUs != emulated.GPUs || !o.report.Quick {
		t.Errorf("%+v", o.report)
	}
	for _, r := range o.report.Rates {
		if r.Bytes <= 0 || r.BytesPerSecond <= 0 || r.Share <= 0 || r.Goal != 0 {
			t.Errorf("%+v", r)
		}
	}
	for _, words := range []string{"Emulated GPU", "compute capability   9.0", "kernels have the CPU's bits", "of a copy's", "gather and release of a block", "NCCL                 2.", "all-gather between 8 GPUs", "NCCL only copies for one rank", "0 of 29 checks failed"} {
		if !strings.Contains(o.stdout, words) {
			t.Errorf("the table does not mention %q\n%s", words, o.stdout)
		}
	}
	m.Clean(t)
}

// Each part finds a kernel that is wrong, the others do not run.
func TestAWrongKernelFails(t *testing.T) {
	for name, c := range map[string]struct {
		section, before, after string
		want                   []string
	}{
		"result":     {"kernels", "(gradient, elements, factor); }", "(gradient, elements, factor * 2); }", []string{"shardgen_scale_f32: ordinary numbers, times 0.3, 1 elements: the gradient differs in 1 of 1 elements"}},
		"length":     {"kernels", "AddF32InF32>(sum, source, elements, divisor)", "AddF32InF32>(sum, source, elements + 1, divisor)", []string{"shardgen_accumulate_f32_f32_add", "the garbage"}},
		"far":        {"far", "AdamWF32BF16>(step, master, moment1, moment2, gradient, copy, elements)", "AdamWF32BF16>(step, master, moment1, moment2, gradient, copy, elements - (elements > 100000))", []string{"adamw", "the master differs in 1 of 4096 elements: element 4095"}},
		"model":      {"model", "StoreF32InF32>(sum, source, elements, divisor)", "StoreF32InF32>(sum, source, elements, divisor * 2)", []string{"tiny on 8", "rank 0: gradient of"}},
		"no kernels": {"kernels", "extern \"C\" __global__ void __launch_bounds__(shardgen::kThreads, shardgen::kBlocks) shardgen_norm_f32(", "extern \"C\" __global__ void __launch_bounds__(shardgen::kThreads, shardgen::kBlocks) shardgen_other(", []string{"the code lacks shardgen_norm_f32"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, list := emulatedPackages(t, "tiny")
			list[0].Code = spoiled(t, m, "tiny", c.before, c.after)
			o := runQuick(t, list, "-sections", c.section)
			if o.status != exitFailed || o.report.Failed == 0 {
				t.Errorf("status %d, %d failed", o.status, o.report.Failed)
			}
			for _, words := range c.want {
				if !strings.Contains(o.stdout, words) {
					t.Errorf("the table does not mention %q\n%s", words, o.stdout)
				}
			}
			for _, k := range o.report.Checks {
				if k.Section != c.section && k.Section != "end" {
					t.Errorf("section %s was done", k.Section)
				}
			}
		})
	}
}

// spoiled returns the code of a package after a change of its kernels.
func spoiled(t *testing.T, m *emulated.Machine, name, before, after string) device.Code {
	t.Helper()
	changed := t.TempDir()
	for _, file := range []string{"zz_kernels.cu", "zz_layout.cuh"} {
		text, err := os.ReadFile(filepath.Join(folder(name), file))
		if err != nil {
			t.Fatal(err)
		}
		if file == "zz_kernels.cu" {
			if !strings.Contains(string(text), before) {
				t.Fatalf("the kernels of %s have no %q", name, before)
			}
			text = []byte(strings.ReplaceAll(string(text), before, after))
		}
		if err := os.WriteFile(filepath.Join(changed, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return m.AddPackage(t, changed, device.Code{})
}

func TestAPackageThatCantBeLoadedFails(t *testing.T) {
	_, list := emulatedPackages(t, "tiny", "oddshapes")
	list[0].Code = device.Code{Package: "tiny", Command: "go tool shardgen generate tiny.yaml"}
	o := runQuick(t, list, "-sections", "kernels")
	if o.status != exitFailed || o.report.Failed != 1 || !strings.Contains(o.stdout, "generated without CUDA") || !strings.Contains(o.stdout, "oddshapes") {
		t.Errorf("status %d\n%s%s", o.status, o.stdout, o.stderr)
	}
}

func TestWithoutNCCLTheRestIsChecked(t *testing.T) {
	_, list := emulatedPackages(t, "tiny")
	t.Setenv("SHARDGEN_LIBNCCL", "/nowhere/libnccl.so.2")
	o := runQuick(t, list, "-sections", "kernels,model,costs")
	if o.status != exitOK || !strings.Contains(o.stdout, "/nowhere/libnccl.so.2") {
		t.Errorf("status %d\n%s%s", o.status, o.stdout, o.stderr)
	}
	skipped := 0
	for _, k := range o.report.Checks {
		if k.Status == Skipped {
			skipped++
		}
	}
	if skipped != 3 {
		t.Errorf("%d checks were skipped, expected two models and a gather\n%s", skipped, o.stdout)
	}
}

func TestAFullGPUSkipsLongRanges(t *testing.T) {
	m, list := emulatedPackages(t, "tiny")
	m.Memory(t, 32<<20)
	other, err := cuda.Open(0, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Alloc(30 << 20); err != nil {
		t.Fatal(err)
	}
	o := runQuick(t, list, "-sections", "far")
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if o.status != exitOK || !strings.Contains(o.stdout, "the GPU has") {
		t.Errorf("status %d\n%s%s", o.status, o.stdout, o.stderr)
	}
}

func TestTheDeadlineEndsARun(t *testing.T) {
	_, list := emulatedPackages(t, "tiny")
	o := runQuick(t, list, "-timeout", "1ms")
	if o.status != exitFailed || !strings.Contains(o.stdout, "not done within 1ms (flag -timeout)") {
		t.Errorf("status %d\n%s%s", o.status, o.stdout, o.stderr)
	}
}

// The program is run as a user does, with the kernels that it has embedded.
func TestTheProgramRunsOnTheDoubles(t *testing.T) {
	m, list := emulatedPackages(t, "tiny")
	folder, err := emulated.Folder()
	if err != nil {
		t.Fatal(err)
	}
	if embedded := tiny.Descriptor().Code; list[0].Code != embedded {
		emu.Need(t, errors.New("the committed package tiny has no compiled kernels: run make generate where make cuda-toolchain was run"))
	}
	program := filepath.Join(t.TempDir(), "gpucheck")
	build := exec.Command("go", "build", "-o", program, "../../cmd/gpucheck")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program, "-quick", "-packages", "tiny", "-sections", "kernels,model")
	cmd.Env = append(os.Environ(), "SHARDGEN_LIBCUDA="+m.CUDA(), "SHARDGEN_LIBNCCL="+m.NCCL(), "EMU_DEVICES=2", "EMU_IMAGES="+filepath.Join(folder, "images"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0 of 4 checks failed") || !strings.Contains(string(out), "tiny on 2") {
		t.Errorf("%v\n%s", err, out)
	}
}
