package double

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
)

const (
	// cudaHeaders are those of the pinned compilers.
	cudaHeaders = "../../../build/cuda/nvidia/cu13/include"
	// ncclHeaders are where the wheel nvidia-nccl-cu13 has them, beside.
	ncclHeaders = "../../../build/cuda/nvidia/nccl/include"
)

// needHeader skips a test without a header, except in CI.
func needHeader(t *testing.T, path, fix string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		emu.Need(t, fmt.Errorf("%w; %s", err, fix))
	}
}

// checkAgainst compiles each file of a library with the real header in the place
// of the double's declarations: a function that differs from its prototype, or
// that has none, is an error.
func checkAgainst(t *testing.T, library string, except string, includes ...string) {
	t.Helper()
	emu.Require(t)
	names, err := fs.Glob(sources, "src/"+library+"/*.cc")
	if err != nil || len(names) < 5 {
		t.Fatalf("files %v, %v", names, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildWait)
	defer cancel()
	unit := strings.Builder{}
	for _, name := range names {
		if filepath.Base(name) != except {
			unit.WriteString("#include \"" + name + "\"\n")
		}
	}
	unit.WriteString(values(t, library))
	arguments := []string{"-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wmissing-declarations", "-DEMU_REAL_HEADERS", "-I.", "-Isrc"}
	for _, include := range includes {
		arguments = append(arguments, "-isystem", include)
	}
	command := exec.CommandContext(ctx, compiler, append(arguments, "-x", "c++", "-")...)
	command.Stdin = strings.NewReader(unit.String())
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%.3000s", err, out)
	}
}

func TestTheDriversCallsHaveTheirRealPrototypes(t *testing.T) {
	t.Parallel()
	needHeader(t, cudaHeaders+"/cuda.h", "run `make cuda-toolchain`")
	checkAgainst(t, "cuda", "", cudaHeaders)
}

var valueForm = regexp.MustCompile(`(?m)\b((?:CU|nccl)\w+) = (\d+)`)

// values asserts that the double's own constants have the values of the real
// header.
func values(t *testing.T, library string) string {
	t.Helper()
	own, err := sources.ReadFile("src/" + library + "/api.h")
	if err != nil {
		t.Fatal(err)
	}
	found := valueForm.FindAllStringSubmatch(string(own), -1)
	if len(found) < 20 {
		t.Fatalf("api.h of %s: only %d constants were found", library, len(found))
	}
	var b strings.Builder
	for _, m := range found {
		if m[1] != "ncclNumTypes" { // a later NCCL may have more
			fmt.Fprintf(&b, "static_assert(static_cast<long long>(%s) == %s, \"%s\");\n", m[1], m[2], m[1])
		}
	}
	return b.String()
}

// reduce.cc has no call, and uses the emulator's own words for CUDA.
func TestNCCLsCallsHaveTheirRealPrototypes(t *testing.T) {
	t.Parallel()
	needHeader(t, cudaHeaders+"/cuda.h", "run `make cuda-toolchain`")
	needHeader(t, ncclHeaders+"/nccl.h", "install nvidia-nccl-cu13 into build/cuda")
	checkAgainst(t, "nccl", "reduce.cc", cudaHeaders, ncclHeaders)
}

// These are the calls that the Go runtime may make.
func TestTheDoublesHaveAllCalls(t *testing.T) {
	l := libraries(t)
	for path, names := range map[string]string{l.CUDA: driverCalls, l.NCCL: ncclCalls} {
		out, err := exec.CommandContext(t.Context(), "nm", "-D", "--defined-only", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.FieldsSeq(names) {
			if !strings.Contains(string(out), " T "+name+"\n") {
				t.Errorf("%s has no %s", path, name)
			}
		}
	}
}

const driverCalls = `cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetAttribute
cuDeviceTotalMem_v2 cuDeviceGetUuid_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxSetCurrent
cuCtxGetCurrent cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuMemHostAlloc cuMemFreeHost cuMemHostRegister_v2
cuMemHostUnregister cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemsetD8Async cuMemsetD32Async
cuStreamCreate cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery cuStreamWaitEvent cuEventCreate cuEventDestroy_v2
cuEventRecord cuEventQuery cuEventSynchronize cuEventElapsedTime_v2 cuModuleLoadData cuModuleLoadDataEx cuModuleUnload
cuModuleGetFunction cuLaunchKernel cuGetErrorName cuGetErrorString cuGetProcAddress_v2 cuFuncGetAttribute
cuCtxSynchronize cuDeviceGetPCIBusId cuFuncSetAttribute cuStreamCreateWithPriority cuCtxGetStreamPriorityRange
cuThreadExchangeStreamCaptureMode`

const ncclCalls = `ncclGetVersion ncclGetUniqueId ncclCommInitRank ncclCommInitRankConfig ncclCommSplit ncclCommCount
ncclCommUserRank ncclCommCuDevice ncclCommFinalize ncclCommDestroy ncclCommAbort ncclCommGetAsyncError
ncclGetErrorString ncclGetLastError ncclAllGather ncclReduceScatter ncclAllReduce ncclBroadcast ncclBcast ncclSend
ncclRecv ncclGroupStart ncclGroupEnd`
