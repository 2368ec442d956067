package cpu_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// Compilers for arm64 fuse a product into a sum unless it is rounded by itself,
// and then a step or a fill gives other bits there. What they make must not hold
// such an instruction.
func TestNoProductIsFusedIntoASum(t *testing.T) {
	folder := "github.com/shardgen/shardgen/runtime/"
	build := exec.Command("go", "build", "-gcflags="+folder+"...=-S", folder+"dtype", folder+"optim", folder+"random", folder+"device/cpu", folder+"comm/local")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	assembly, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, assembly)
	}
	if len(regexp.MustCompile(`\tFMUL[SD]\t`).FindAll(assembly, -1)) < 20 {
		t.Fatalf("%d bytes of assembly without products", len(assembly))
	}
	for _, line := range regexp.MustCompile(`(?m)^.*\tFN?M(ADD|SUB)[SD]\t.*$`).FindAll(assembly, -1) {
		t.Errorf("fused: %s", line)
	}
}
