package double

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A lock of a file is of whoever opened it: builders in one process exclude each
// other as processes do.
func TestBuildersAtTheSameTimeBuildOnce(t *testing.T) {
	target := filepath.Join(t.TempDir(), "built")
	builds := 0
	build := func() error {
		builds++
		time.Sleep(20 * time.Millisecond)
		return os.WriteFile(target, nil, 0o600)
	}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if err := cached(t.Context(), target, build); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if builds != 1 {
		t.Errorf("%d builds", builds)
	}
}

func TestABuilderThatFailsLetsOthersBuild(t *testing.T) {
	target, broken := filepath.Join(t.TempDir(), "built"), errors.New("broken")
	if err := cached(t.Context(), target, func() error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := cached(t.Context(), target, func() error { return os.WriteFile(target, nil, 0o600) }); err != nil || !exists(target) {
		t.Error(err)
	}
}

func TestWaitingForABuilderEndsWithTheContext(t *testing.T) {
	target := filepath.Join(t.TempDir(), "built")
	unlock, err := lock(t.Context(), target+".lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("enough"))
	defer cancel()
	err = cached(ctx, target, func() error { t.Error("built under another's lock"); return nil })
	if err == nil || !strings.Contains(err.Error(), "built.lock: enough") {
		t.Error(err)
	}
	unlock()
	if err := cached(t.Context(), target, func() error { return os.WriteFile(target, nil, 0o600) }); err != nil {
		t.Error(err)
	}
}
