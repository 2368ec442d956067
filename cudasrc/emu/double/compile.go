package double

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"
	"github.com/shardgen/shardgen/cudasrc/emu"
)

const compiler = "g++"

// flags are those of all code: as for an emulator program, but for shared
// libraries whose symbols are their own.
var flags = []string{
	"-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-pthread",
	"-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE",
	"-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
}

// tree is a folder with the sources of one build: ours, the emulator's, kernels.
type tree struct{ path string }

// newTree writes the sources. Package emu writes its headers when it builds a
// program, so it gets one that is empty.
func (l *Libraries) newTree(ctx context.Context, kernels string, files map[string]string) (*tree, error) {
	folder, err := os.MkdirTemp(l.folder, "tree-")
	if err != nil {
		return nil, err
	}
	t := &tree{folder}
	all := maps.Clone(files)
	if all == nil {
		all = map[string]string{}
	}
	all["program.cc"] = "int main() { return 0; }\n"
	if _, err = emu.Build(ctx, folder, kernels, emu.Options{Files: all}); err == nil {
		err = os.CopyFS(folder, sources)
	}
	if err != nil {
		return nil, errors.Join(err, t.remove())
	}
	return t, os.Remove(filepath.Join(folder, "program"))
}

func (t *tree) remove() error { return os.RemoveAll(t.path) }

// key is a hash of the sources, the flags and the compiler's version.
func (t *tree) key(ctx context.Context) (string, error) {
	version, err := exec.CommandContext(ctx, compiler, "-dumpfullversion", "-dumpmachine").Output()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q\n", version, flags)
	root := os.DirFS(t.path)
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		fmt.Fprintf(h, "%s %d\n%s\n", name, len(content), content)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:16], err
}

// gpp runs the compiler in the tree.
func (t *tree) gpp(ctx context.Context, arguments ...string) error {
	command := exec.CommandContext(ctx, compiler, append(slices.Clone(flags), arguments...)...)
	command.Dir = t.path
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%.3000s", compiler, err, out)
	}
	return nil
}

// unit writes a file that includes all sources of a library, which compiles
// faster than one by one.
func (t *tree) unit(library string) error {
	names, err := fs.Glob(sources, path.Join("src", library, "*.cc"))
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "#include %q\n", name)
	}
	return os.WriteFile(filepath.Join(t.path, library+".cc"), []byte(b.String()), 0o644)
}

// compile builds both libraries, or finds them in the cache.
func (l *Libraries) compile(ctx context.Context) error {
	t, err := l.newTree(ctx, "", nil)
	if err != nil {
		return err
	}
	key, err := t.key(ctx)
	if err == nil {
		target := filepath.Join(l.folder, "libraries-"+key)
		l.CUDA, l.NCCL = filepath.Join(target, "libcuda.so.1"), filepath.Join(target, "libnccl.so.2")
		err = cached(ctx, target, func() error {
			start := time.Now()
			defer func() { l.Compile = time.Since(start) }()
			return t.libraries(ctx, target)
		})
	}
	return errors.Join(err, t.remove())
}

// libraries compiles both at the same time, then links: NCCL's against CUDA's,
// which it finds in its own folder.
func (t *tree) libraries(ctx context.Context, target string) error {
	if err := os.Mkdir(filepath.Join(t.path, "out"), 0o755); err != nil {
		return err
	}
	done := make(chan error, 2)
	for _, library := range []string{"cuda", "nccl"} {
		go func() {
			err := t.unit(library)
			if err == nil {
				err = t.gpp(ctx, "-Isrc", "-I.", "-c", library+".cc", "-o", library+".o")
			}
			done <- err
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		return err
	}
	err := t.gpp(ctx, "-shared", "cuda.o", "-o", "out/libcuda.so.1", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs", "-ldl")
	if err == nil {
		err = t.gpp(ctx, "-shared", "nccl.o", "out/libcuda.so.1", "-o", "out/libnccl.so.2",
			"-Wl,-soname,libnccl.so.2", "-Wl,-z,defs", "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN")
	}
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(t.path, "out"), target)
}

// longest bounds how long a process waits for another one's compiler.
const longest = 10 * time.Minute

// cached makes a file or folder of the cache unless it is there. Where another
// process is about to make the same, it waits and finds it. What build writes must
// get its name last.
func cached(ctx context.Context, target string, build func() error) error {
	if exists(target) {
		return nil
	}
	unlock, err := lock(ctx, target+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if exists(target) {
		return nil
	}
	return build()
}

// lock takes a lock that excludes other processes, and ends with one that dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("another process has it for more than %v", longest))
	defer cancel()
	type result struct {
		unlock func()
		err    error
	}
	taken := make(chan result)
	go func() {
		unlock, err := lockedfile.MutexAt(path).Lock()
		select {
		case taken <- result{unlock, err}:
		case <-ctx.Done():
			if err == nil {
				unlock()
			}
		}
	}()
	select {
	case r := <-taken:
		return r.unlock, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// program is what the .cu of a package is compiled as.
func program(source string) string {
	var b strings.Builder
	b.WriteString("#include \"emulator.h\"\n#include \"kernels.cu\"\n#include \"kernels.h\"\n\n")
	b.WriteString("const EmuKernel* emu_kernels(std::size_t* count) {\n  static const EmuKernel all[] = {\n")
	names := emu.Entries(source)
	for _, name := range names {
		fmt.Fprintf(&b, "      EMU_KERNEL(%s),\n", name)
	}
	fmt.Fprintf(&b, "  };\n  *count = %d;\n  return all;\n}\n", len(names))
	return b.String()
}

func (l *Libraries) addKernels(ctx context.Context, source string, files map[string]string, name string) error {
	if len(emu.Entries(source)) == 0 {
		return errors.New("the source has no kernel")
	}
	t, err := l.newTree(ctx, source, files)
	if err != nil {
		return err
	}
	key, err := t.key(ctx)
	if err == nil {
		err = t.kernels(ctx, source, filepath.Join(l.folder, "kernels-"+key+".so"), filepath.Join(l.Images, name+".so"))
	}
	return errors.Join(err, t.remove())
}

// kernels compiles a package's kernels unless the cache has them, and registers
// them under the name of an image.
func (t *tree) kernels(ctx context.Context, source, target, image string) error {
	if err := cached(ctx, target, func() error { return t.image(ctx, source, target) }); err != nil {
		return err
	}
	link := filepath.Join(t.path, "link")
	if err := os.Symlink(target, link); err != nil {
		return err
	}
	return os.Rename(link, image)
}

func (t *tree) image(ctx context.Context, source, target string) error {
	if err := os.WriteFile(filepath.Join(t.path, "image.cc"), []byte(program(source)), 0o644); err != nil {
		return err
	}
	if err := t.gpp(ctx, "-I.", "-Isrc", "-shared", "image.cc", "-o", "image.so"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(t.path, "image.so"), target)
}
