package cuda

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
)

// cudaInclude has the headers of the pinned compilers.
const cudaInclude = "../../../build/cuda/nvidia/cu13/include"

// needHeader skips a test where cuda.h or g++ is missing, except in CI.
func needHeader(t *testing.T) {
	t.Helper()
	_, err := os.Stat(cudaInclude + "/cuda.h")
	if err == nil {
		_, err = exec.LookPath("g++")
	}
	if err != nil {
		emu.Need(t, fmt.Errorf("%w; run `make cuda-toolchain`", err))
	}
}

func compileOnly(t *testing.T, source string) (output string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "check.cc")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("g++", "-std=c++17", "-fsyntax-only", "-isystem", cudaInclude, path).CombinedOutput()
	return string(out), err
}

// headerCheck assigns every function to a pointer with the prototype of the table.
func headerCheck(table []prototype) string {
	b := strings.Builder{}
	b.WriteString("#include <cuda.h>\n")
	for _, p := range table {
		fmt.Fprintf(&b, "CUresult (*const p_%s)(%s) = %s;\n", p.symbol, p.parameters, p.symbol)
	}
	for _, c := range []struct {
		name  string
		value int
	}{
		{"CUDA_SUCCESS", success}, {"CUDA_ERROR_OUT_OF_MEMORY", errOutOfMemory}, {"CUDA_ERROR_INVALID_IMAGE", errInvalidImage},
		{"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", errCaptureFirst}, {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", errCaptureLast},
		{"CU_STREAM_CAPTURE_MODE_RELAXED", captureRelaxed}, {"CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", maxDynamicShared},
		{"CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", sharedOptIn}, {"sizeof(CUstreamCaptureMode)", 4}, {"sizeof(CUfunction_attribute)", 4},
		{"CUDA_ERROR_NO_BINARY_FOR_GPU", errNoBinary},
		{"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", errPTXVersion}, {"CUDA_ERROR_NOT_FOUND", errNotFound}, {"CUDA_ERROR_NOT_READY", errNotReady},
		{"CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", multiprocessors}, {"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", capabilityMajor},
		{"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", capabilityMinor}, {"CU_STREAM_NON_BLOCKING", streamNonBlock},
		{"CU_EVENT_DISABLE_TIMING", eventNoTiming}, {"CU_MEMHOSTALLOC_PORTABLE", hostPortable},
		{"CU_JIT_ERROR_LOG_BUFFER", jitErrorLog}, {"CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES", jitErrorLogBytes},
		{"sizeof(CUresult)", 4}, {"sizeof(CUdevice)", 4}, {"sizeof(CUdeviceptr)", 8}, {"sizeof(CUjit_option)", 4},
	} {
		fmt.Fprintf(&b, "static_assert(%s == %d, \"%s\");\n", c.name, c.value, c.name)
	}
	return b.String()
}

func TestPrototypesAndConstantsAreThoseOfTheHeader(t *testing.T) {
	needHeader(t)
	if out, err := compileOnly(t, headerCheck(prototypes[:])); err != nil {
		t.Errorf("%v\n%.4000s", err, out)
	}
	wrong := prototypes
	wrong[cuMemAlloc].parameters = "CUdeviceptr *address, unsigned int bytes"
	if out, err := compileOnly(t, headerCheck(wrong[:])); err == nil || !strings.Contains(out, "cuMemAlloc_v2") {
		t.Errorf("a wrong prototype compiles: %v\n%s", err, out)
	}
}

// The header maps the name of a function to the symbol with its newest
// parameters.
func TestSymbolsAreTheNamesThatTheHeaderMapsTo(t *testing.T) {
	needHeader(t)
	b := strings.Builder{}
	b.WriteString("#include <cuda.h>\n#include <string_view>\n#define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)\n")
	for _, p := range prototypes {
		plain, _, _ := strings.Cut(p.symbol, "_v")
		fmt.Fprintf(&b, "static_assert(std::string_view(TEXT(%s)) == \"%s\");\n", plain, p.symbol)
	}
	if out, err := compileOnly(t, b.String()); err != nil {
		t.Errorf("%v\n%.4000s", err, out)
	}
}

func TestCallsHaveTheArgumentsOfThePrototypes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	byName := functionNames(t)
	called := map[function]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, n, ok := driverCall(call, byName); ok {
				called[f] = true
				if n >= 0 && n != f.arguments() {
					t.Errorf("%v: %s has %d arguments, the call %d", set.Position(call.Pos()), f, f.arguments(), n)
				}
			}
			return true
		})
	}
	for f := range prototypes {
		if !called[function(f)] {
			t.Errorf("%s is in the table, but no call was found", function(f))
		}
	}
}

// functionNames maps the Go names of the table's rows to functions.
func functionNames(t *testing.T) map[string]function {
	t.Helper()
	names := map[string]function{}
	for f, p := range prototypes {
		plain, _, _ := strings.Cut(p.symbol, "_v")
		names[plain] = function(f)
	}
	return names
}

// driverCall returns the function that a call names and how many arguments it
// passes: -1 where they are in a slice, whose length is not in the text.
func driverCall(call *ast.CallExpr, byName map[string]function) (f function, arguments int, ok bool) {
	for at, argument := range call.Args {
		name, isName := argument.(*ast.Ident)
		if !isName {
			continue
		}
		if f, ok = byName[name.Name]; !ok {
			continue
		}
		rest := call.Args[at+1:]
		if method, _ := call.Fun.(*ast.SelectorExpr); method != nil && method.Sel.Name == "submit" {
			var n int
			_, err := fmt.Sscan(rest[0].(*ast.BasicLit).Value, &n)
			return f, n, err == nil
		}
		if call.Ellipsis.IsValid() || len(rest) == 0 || isCheck(call) {
			return f, -1, true
		}
		return f, len(rest), true
	}
	return 0, 0, false
}

// isCheck reports a call that only names a function for an error.
func isCheck(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (method.Sel.Name == "check" || method.Sel.Name == "describe")
}
