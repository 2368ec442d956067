package output

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// shortWait is how long tests wait for a lock that they hold themselves.
const shortWait = 50 * time.Millisecond

func hold(t *testing.T, dir string) lock {
	t.Helper()
	held, err := osFS{}.Lock(filepath.Join(dir, lockName), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func TestOneRunWritesAtATime(t *testing.T) {
	dir := t.TempDir()
	held := hold(t, dir)
	if _, err := (osFS{}).Lock(filepath.Join(dir, lockName), shortWait); !errors.Is(err, errLocked) {
		t.Errorf("error %v, want %v", err, errLocked)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	if err := hold(t, dir).Release(); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); got != "" {
		t.Errorf("left: %s", got)
	}
}

// Each writer has files of its own origin, so that none removes another's.
func TestManyRunsAtOnceLoseNoFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var wait sync.WaitGroup
	for w := range 8 {
		wait.Go(func() {
			s := &Set{Origin: fmt.Sprintf("%d.yaml", w)}
			for round := range 5 {
				s.Files = nil
				for f := range 3 {
					s.Files = append(s.Files, File{Name: fmt.Sprintf("zz_%d_%d.go", w, f), Content: fmt.Appendf(nil, "%s\n%d", Header(s.Origin), round)})
				}
				if _, err := s.Write(dir); err != nil {
					t.Errorf("writer %d, round %d: %v", w, round, err)
				}
			}
		})
	}
	wait.Wait()
	files := tree(t, dir)
	if len(files) != 8*3 {
		t.Errorf("%d files: %s", len(files), names(t, dir))
	}
	for name, content := range files {
		if !strings.HasSuffix(content, "\n4") {
			t.Errorf("%s holds %q", name, content)
		}
	}
}

func TestRunsOfOneSpecAtOnceLeaveOneOfTheResults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var wait sync.WaitGroup
	for w := range 8 {
		wait.Go(func() {
			body := fmt.Sprint(w)
			if _, err := set(generated("zz_a.go", body), generated("zz_b.go", body), generated("zz_"+body+"x.go", body)).Write(dir); err != nil {
				t.Errorf("writer %d: %v", w, err)
			}
		})
	}
	wait.Wait()
	files := tree(t, dir)
	if len(files) != 3 || files["zz_a.go"] != files["zz_b.go"] {
		t.Errorf("files: %v", files)
	}
}

// A run that fails removes the folder that it made, while another waits in it.
func TestARunThatFailsTakesNoFolderFromAnother(t *testing.T) {
	for range 20 {
		dir := filepath.Join(t.TempDir(), "new")
		var wait sync.WaitGroup
		for range 3 {
			wait.Go(func() {
				set(generated("zz_x.go", "x")).write(&faultFS{at: 9}, dir)
			})
		}
		wait.Go(func() {
			if _, err := set(generated("zz_a.go", "a")).Write(dir); err != nil {
				t.Error(err)
			}
		})
		wait.Wait()
		if tree(t, dir)["zz_a.go"] == "" {
			t.Fatalf("files: %v", tree(t, dir))
		}
	}
}

// TestMain plays a run that is killed while it holds the lock.
func TestMain(m *testing.M) {
	dir := os.Getenv("SHARDGEN_TEST_DIE_IN")
	if dir == "" {
		os.Exit(m.Run())
	}
	held, err := osFS{}.Lock(filepath.Join(dir, lockName), time.Minute)
	if err == nil {
		err = held.SetJournal(journal([]string{stagedName("zz_a.go"), backupName("zz_b.go"), stagedName("zz_c.go")}))
	}
	for _, name := range []string{stagedName("zz_a.go"), backupName("zz_b.go")} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o644))
	}
	fmt.Println(err)
	os.Exit(9)
}

func TestARunThatWasKilledBlocksNobodyAndIsCleanedUpAfter(t *testing.T) {
	dir := t.TempDir()
	mine := map[string]string{
		".zz_mine": "1", ".zz_notes.shardgen-old": "2", ".zz_d.go" + stagedSuffix: "3", ".zz_d.go" + backupSuffix: "4",
	}
	for name, content := range mine {
		put(t, dir, name, content)
	}
	killed := exec.Command(os.Args[0])
	killed.Env = append(os.Environ(), "SHARDGEN_TEST_DIE_IN="+dir)
	if out, err := killed.CombinedOutput(); string(out) != "<nil>\n" || killed.ProcessState.ExitCode() != 9 {
		t.Fatalf("%v\n%s", err, out)
	}
	mustWrite(t, set(generated("zz_a.go", "a")), dir)
	files := tree(t, dir)
	if len(files) != len(mine)+1 {
		t.Errorf("files: %s", names(t, dir))
	}
	for name, content := range mine {
		if files[name] != content {
			t.Errorf("%s holds %q", name, files[name])
		}
	}
}

func TestLeftoversAreRemovedThoughNoFileDiffers(t *testing.T) {
	dir := t.TempDir()
	s := set(generated("zz_a.go", "a"))
	mustWrite(t, s, dir)
	put(t, dir, lockName, string(journal([]string{backupName("zz_a.go")})))
	put(t, dir, backupName("zz_a.go"), "old")
	mustWrite(t, s, dir)
	if got := names(t, dir); got != "zz_a.go" {
		t.Errorf("files: %s", got)
	}
}

func TestFilesUnderTheNamesOfARunAreNotTouched(t *testing.T) {
	for _, name := range []string{stagedName("zz_two.go"), backupName("zz_two.go"), stagedName("zz_more.go"), backupName("zz_gone.go"), lockName} {
		t.Run(name, func(t *testing.T) {
			dir := oldFolder(t)
			put(t, dir, name, "by hand\n")
			before := tree(t, dir)
			_, err := newSet.Write(dir)
			var conflict *ConflictError
			if !errors.As(err, &conflict) || conflict.Path != filepath.Join(dir, name) {
				t.Errorf("error %v, want a ConflictError about it", err)
			}
			if after := tree(t, dir); !equalTrees(before, after) {
				t.Errorf("files before: %v\nafter: %v", before, after)
			}
		})
	}
}

func TestALockThatIsALinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	target := put(t, t.TempDir(), "elsewhere", "")
	if err := os.Symlink(target, filepath.Join(dir, lockName)); err != nil {
		t.Fatal(err)
	}
	if _, err := set(generated("zz_a.go", "a")).Write(dir); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error %v", err)
	}
	if content, err := os.ReadFile(target); err != nil || len(content) > 0 {
		t.Errorf("the file elsewhere holds %q, error %v", content, err)
	}
}

func TestJournalsAreReadBack(t *testing.T) {
	whole := journal([]string{stagedName("zz_a.go"), backupName("zz_b.go")})
	for n := range len(whole) + 1 {
		names, ok := journalNames(whole[:n])
		if !ok || len(names) > 2 || n == len(whole) && len(names) != 2 {
			t.Errorf("the first %d bytes: %q, %t", n, names, ok)
		}
	}
	names, ok := journalNames([]byte(journalHeader + "../.zz_a" + stagedSuffix + "\nmodel.yaml\n.zz_b.go\n"))
	if !ok || len(names) > 0 {
		t.Errorf("a journal may name temporary files only, read %q", names)
	}
	if _, ok := journalNames([]byte("notes\n")); ok {
		t.Error("a text by hand is read as a journal")
	}
}
