package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

// Module is code that was loaded onto a GPU: a trainer's own kernels.
type Module struct {
	device *Device
	handle uintptr // CUmodule
}

// Function is a kernel of a module. It is valid until the module is closed.
type Function struct {
	name   string
	handle uintptr       // CUfunction
	shared *sharedMemory // nil for kernels that use none
}

// freeSharedBytes is the dynamic shared memory that every launch may use. A kernel
// has to be told before it uses more.
const freeSharedBytes = 48 << 10

// sharedMemory is the most that a kernel was told so far. It only grows: launches
// on several streams don't take it from each other.
type sharedMemory struct {
	mu    sync.Mutex
	bytes uint32
}

// Name returns the kernel's name.
func (f Function) Name() string { return f.name }

// LoadModule loads a fatbin, a cubin or the text of PTX. An error holds what the
// driver's compiler says.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("%s: the module is empty", d.label())
	}
	if fatbin.IsImage(string(image[:min(len(image), 16)])) { // of cubins and PTX the driver finds the end by itself
		if err := fatbin.CheckImage(string(image)); err != nil {
			return nil, fmt.Errorf("%s: module: %w", d.label(), err)
		}
	}
	aligned := make([]uint64, len(image)/8+1) // ends in a zero at least, as PTX must
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&aligned[0])), 8*len(aligned)), image)
	m := &Module{device: d}
	if err := m.load(aligned); err != nil {
		return nil, fmt.Errorf("%s: module of %d bytes: %w%s", d.label(), len(image), err, d.mismatch(err))
	}
	return m, nil
}

// mismatch says of an image that the driver can't load what it may be made for.
func (d *Device) mismatch(err error) string {
	switch codeOf(err) {
	case errInvalidImage, errNoBinary, errPTXVersion:
		return fmt.Sprintf("\nthe GPU is sm_%d, the driver supports CUDA %s: the code may be made by a newer nvcc, or for other GPUs; update the driver, or compile with an nvcc of CUDA %d",
			d.capability, versionText(d.version), d.version/1000)
	}
	return ""
}

// load gives the driver an image and room for its compiler's messages.
func (m *Module) load(image []uint64) error {
	log := make([]byte, 8<<10)
	options := []int32{jitErrorLog, jitErrorLogBytes}
	values := struct { // as the array of two that the driver reads
		log   *byte
		bytes uintptr
	}{&log[0], uintptr(len(log) - 1)}
	err := m.device.within(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&image[0])),
		uintptr(len(options)), uintptr(unsafe.Pointer(&options[0])), uintptr(unsafe.Pointer(&values)))
	text, _, _ := bytes.Cut(log, []byte{0})
	if said := strings.TrimSpace(string(text)); err != nil && said != "" {
		return fmt.Errorf("%w\n%s", err, said)
	}
	return err
}

// Function returns a kernel by its name, that of an extern "C" function.
func (m *Module) Function(name string) (Function, error) {
	f, err := m.lookUp(name)
	if codeOf(err) == errNotFound {
		return Function{}, fmt.Errorf("%s: the module has no kernel %s (is it extern \"C\" __global__?): %w", m.device.label(), name, err)
	}
	if err != nil {
		return Function{}, fmt.Errorf("%s: kernel %s: %w", m.device.label(), name, err)
	}
	f.shared = &sharedMemory{bytes: freeSharedBytes}
	return f, nil
}

func (m *Module) lookUp(name string) (Function, error) {
	f := Function{name: name}
	text := append([]byte(name), 0)
	err := m.device.within(cuModuleGetFunction, uintptr(unsafe.Pointer(&f.handle)), m.handle, uintptr(unsafe.Pointer(&text[0])))
	return f, err
}

// Close unloads the module, when no stream uses it any more: it waits for them as
// [Device.Free] does, and leaves the module loaded where work is stuck. Closing
// twice is allowed.
func (m *Module) Close() error {
	if m.handle == 0 {
		return nil
	}
	handle := m.handle
	m.handle = 0
	err := m.device.await()
	if err == nil {
		err = m.device.within(cuModuleUnload, handle)
	}
	if err != nil {
		return fmt.Errorf("%s: unloading a module: %w", m.device.label(), err)
	}
	return nil
}

// Argument is a value that a kernel takes.
type Argument struct {
	word    uint64
	pointer unsafe.Pointer // to a struct; nil for what is in word
}

// Pointer is a pointer to the GPU's memory, such as a tensor's DevicePtr.
func Pointer(a device.Addr) Argument { return Argument{word: uint64(a)} }

// Int64 is a long long or size_t.
func Int64(x int64) Argument { return Argument{word: uint64(x)} }

// Int32 is an int.
func Int32(x int32) Argument { return Argument{word: uint64(uint32(x))} }

// Uint64 is an unsigned long long, or any type whose bits x holds from the lowest
// on, such as a bf16.
func Uint64(x uint64) Argument { return Argument{word: x} }

// Float32 is a float.
func Float32(x float32) Argument { return Argument{word: uint64(math.Float32bits(x))} }

// Float64 is a double.
func Float64(x float64) Argument { return Argument{word: math.Float64bits(x)} }

// Struct is a struct that is laid out as the kernel's. It is read during the
// launch.
func Struct[T any](x *T) Argument { return Argument{pointer: unsafe.Pointer(x)} }

// maxArguments bounds what a launch takes.
const maxArguments = 64

// launchArguments are the arguments of the launch that is being made, where the
// driver reads them.
type launchArguments struct {
	words    [maxArguments]uint64
	pointers [maxArguments + 1]unsafe.Pointer // of the arguments, nil behind the last
	n        int
}

func (a *launchArguments) reset() { a.n = 0 }

func (a *launchArguments) add(x uint64) {
	a.words[a.n] = x
	a.pointers[a.n] = unsafe.Pointer(&a.words[a.n])
	a.n++
	a.pointers[a.n] = nil
}

func (a *launchArguments) addFloat64(x float64) { a.add(math.Float64bits(x)) }

func (a *launchArguments) addStruct(x unsafe.Pointer) {
	a.pointers[a.n] = x
	a.n++
	a.pointers[a.n] = nil
}

// Launch adds a kernel to the stream, with its arguments in the order of its
// parameters, as many as it has. The sizes are those of CUDA: blocks of the grid
// and threads of a block, at least 1 in each dimension, and bytes of dynamic
// shared memory. What is wrong becomes the stream's error, which is returned too.
// It allocates nothing.
//
// Memory that the kernel uses must be there until it is done: a tensor of a
// gathered block until its Release, which makes later gathers wait for the
// rank's compute stream.
func (s *Stream) Launch(f Function, grid, block [3]uint32, sharedBytes uint32, arguments ...Argument) error {
	const operation = "launch"
	if s.stopped(operation) {
		return s.Err()
	}
	if err := checkLaunch(f, grid, block, len(arguments)); err != nil {
		s.reject(operation, err)
		return s.Err()
	}
	if err := f.allow(s.device, sharedBytes); err != nil {
		s.reject(operation, err)
		return s.Err()
	}
	s.arguments.reset()
	for i := range arguments {
		if p := arguments[i].pointer; p != nil {
			s.arguments.addStruct(p)
			continue
		}
		s.arguments.add(arguments[i].word)
	}
	s.launch(f.name, f.handle, grid, block, sharedBytes)
	return s.Err()
}

// allow tells the driver how much dynamic shared memory a kernel uses, where it
// is more than before.
func (f Function) allow(d *Device, bytes uint32) error {
	f.shared.mu.Lock()
	defer f.shared.mu.Unlock()
	if bytes <= f.shared.bytes {
		return nil
	}
	err := d.within(cuFuncSetAttribute, f.handle, maxDynamicShared, uintptr(bytes))
	if err == nil {
		f.shared.bytes = bytes
		return nil
	}
	most := d.attribute(sharedOptIn, &err)
	return fmt.Errorf("kernel %s: %d bytes of dynamic shared memory; a block of this GPU has at most %d, static shared memory counted: %w", f.name, bytes, most, err)
}

func checkLaunch(f Function, grid, block [3]uint32, arguments int) error {
	if f.handle == 0 {
		return errors.New("no kernel: a Function comes from Module.Function")
	}
	if arguments > maxArguments {
		return fmt.Errorf("kernel %s: %d arguments, expected at most %d", f.name, arguments, maxArguments)
	}
	for i := range grid {
		if grid[i] == 0 || block[i] == 0 {
			return fmt.Errorf("kernel %s: grid %v of blocks %v, expected 1 or more in each dimension", f.name, grid, block)
		}
	}
	return nil
}

// launch makes the call with the arguments that were added.
func (s *Stream) launch(operation string, function uintptr, grid, block [3]uint32, sharedBytes uint32) {
	s.frame = [11]uintptr{
		function, uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]), uintptr(block[0]), uintptr(block[1]), uintptr(block[2]),
		uintptr(sharedBytes), s.handle, uintptr(unsafe.Pointer(&s.arguments.pointers)), 0,
	}
	s.submit(operation, cuLaunchKernel, 11)
}
