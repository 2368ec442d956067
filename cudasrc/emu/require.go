package emu

import (
	"os"
	"testing"
)

// Require skips a test, with the reason, where the emulator can't be used. With
// CI=true in the environment the test fails instead.
func Require(t testing.TB) {
	t.Helper()
	Need(t, Available())
}

// Need is Require for something else that may be missing: missing says why, nil
// where it is there.
func Need(t testing.TB, missing error) {
	t.Helper()
	if missing == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}
