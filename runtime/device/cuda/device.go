package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
)

// What is needed at least, and why.
const (
	minDriver     = 12000 // of CUDA 12.0: it loads the machine code that any nvcc of CUDA 12 makes
	minCapability = 80    // sm_80: the oldest GPU that kernels are compiled for
)

// Options says which driver is used.
type Options struct {
	// Library is a path of libcuda that is used instead of the system's. Without,
	// the environment variable SHARDGEN_LIBCUDA can name one.
	Library string
}

// Device is a GPU. It is safe for use by many goroutines.
type Device struct {
	driver          *driver
	ordinal         int
	handle          int32   // CUdevice
	context         uintptr // the GPU's primary CUcontext, shared with others in the process
	setContext      []uintptr
	product         string
	version         int
	capability      int // 10*major + minor
	multiprocessors int
	staging         *staging
	modes           sync.Pool // of *captureMode, for query

	closing   sync.Once
	closed    atomic.Bool
	late      atomic.Bool // work was not done when a wait of Close or Free ended
	mu        sync.Mutex
	ending    bool // Close was called: nothing new is made
	allocated map[device.Addr]block
	pinned    []device.Memory // those that are the host's
	streams   []*Stream       // open, or closed with work that is stuck
}

// Devices returns the number of GPUs that the process sees
// (CUDA_VISIBLE_DEVICES counts).
func Devices() (int, error) {
	d, err := loadDriver("")
	if err != nil {
		return 0, fmt.Errorf("cuda: %w", err)
	}
	var n int32
	if err := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n))); err != nil {
		return 0, fmt.Errorf("cuda: number of GPUs: %w", err)
	}
	return int(n), nil
}

// Open returns the GPU with the given number, counted from 0 among those that
// the process sees. It refuses a driver or a GPU that is too old for the kernels
// of generated packages.
func Open(ordinal int, o Options) (*Device, error) {
	driver, err := loadDriver(o.Library)
	if err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", ordinal, err)
	}
	d := &Device{driver: driver, ordinal: ordinal, allocated: map[device.Addr]block{}, modes: sync.Pool{New: newCaptureMode}}
	if err := d.start(); err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", ordinal, err)
	}
	return d, nil
}

// start opens the GPU and takes what a device always holds.
func (d *Device) start() error {
	if err := d.identify(); err != nil {
		return err
	}
	if err := d.refuseOld(); err != nil {
		return err
	}
	if err := d.driver.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&d.context)), uintptr(d.handle)); err != nil {
		return fmt.Errorf("primary context: %w", err)
	}
	d.setContext = []uintptr{d.context}
	if err := d.openStaging(); err != nil {
		return errors.Join(err, d.Close())
	}
	return nil
}

// identify asks the driver for what does not change.
func (d *Device) identify() error {
	var count, version int32
	if err := d.driver.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&version))); err != nil {
		return err
	}
	if err := d.driver.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&count))); err != nil {
		return err
	}
	if d.ordinal < 0 || d.ordinal >= int(count) {
		return fmt.Errorf("there are %d GPUs, numbered from 0 (CUDA_VISIBLE_DEVICES hides others)", count)
	}
	var name [128]byte
	err := errors.Join(
		d.driver.call(cuDeviceGet, uintptr(unsafe.Pointer(&d.handle)), uintptr(d.ordinal)),
		d.driver.call(cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)-1), uintptr(d.handle)),
	)
	major, minor := d.attribute(capabilityMajor, &err), d.attribute(capabilityMinor, &err)
	product, _, _ := bytes.Cut(name[:], []byte{0})
	d.product, d.version, d.capability = string(product), int(version), 10*major+minor
	d.multiprocessors = d.attribute(multiprocessors, &err)
	return err
}

// attribute returns a number of the GPU; an error is added to err.
func (d *Device) attribute(which uintptr, err *error) int {
	var value int32
	*err = errors.Join(*err, d.driver.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&value)), which, uintptr(d.handle)))
	return int(value)
}

// refuseOld says why kernels can't run.
func (d *Device) refuseOld() error {
	if d.version < minDriver {
		return fmt.Errorf("the driver supports CUDA %s, but compiled kernels need %s or newer: install driver 525 or newer, or 580 or newer for kernels that nvcc 13 compiled",
			versionText(d.version), versionText(minDriver))
	}
	if d.capability < minCapability {
		return fmt.Errorf("%s has compute capability %d.%d, but kernels are compiled for %d.%d (A100) and newer",
			d.product, d.capability/10, d.capability%10, minCapability/10, minCapability%10)
	}
	return nil
}

// versionText writes a version of CUDA as people do.
func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Name implements device.Device: "cuda:0 (NVIDIA H100 80GB HBM3)".
func (d *Device) Name() string { return fmt.Sprintf("%s (%s)", d.label(), d.product) }

// label names the device at the beginning of messages.
func (d *Device) label() string { return fmt.Sprintf("cuda:%d", d.ordinal) }

// Ordinal returns the number that the GPU was opened by.
func (d *Device) Ordinal() int { return d.ordinal }

// DriverVersion returns the version of CUDA that the driver supports, such as
// 13000 for 13.0.
func (d *Device) DriverVersion() int { return d.version }

// ComputeCapability returns what the GPU can do: 9 and 0 for sm_90.
func (d *Device) ComputeCapability() (major, minor int) { return d.capability / 10, d.capability % 10 }

// Multiprocessors returns the number of streaming multiprocessors.
func (d *Device) Multiprocessors() int { return d.multiprocessors }

// UUID is what a GPU, or a part of one that MIG made, is known by on all machines.
type UUID [16]byte

// String writes a UUID as nvidia-smi -L does behind "GPU-" or "MIG-".
func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// UUID asks the driver for the GPU's UUID. Where the process sees a part of a GPU
// only, it is that of the part.
func (d *Device) UUID() (u UUID, err error) {
	if err := d.driver.call(cuDeviceGetUUID, uintptr(unsafe.Pointer(&u)), uintptr(d.handle)); err != nil {
		return UUID{}, fmt.Errorf("%s: UUID: %w", d.label(), err)
	}
	return u, nil
}

// MemoryBytes returns how much of the GPU's memory is free, other processes
// considered, and how much it has.
func (d *Device) MemoryBytes() (free, total int64, err error) {
	if err := d.Enter(); err != nil {
		return 0, 0, err
	}
	defer d.Leave()
	var freeBytes, totalBytes uintptr
	err = d.driver.call(cuMemGetInfo, uintptr(unsafe.Pointer(&freeBytes)), uintptr(unsafe.Pointer(&totalBytes)))
	if err != nil {
		return 0, 0, fmt.Errorf("%s: memory: %w", d.label(), err)
	}
	return int64(freeBytes), int64(totalBytes), nil
}

// Enter binds the calling goroutine to its thread and the thread to the GPU's
// context, as all calls of the driver and of libraries over it need. [Device.Leave]
// must follow where it returns nil; the calls in between are from the same
// goroutine. It allocates nothing.
func (d *Device) Enter() error {
	if d.closed.Load() {
		return d.errClosed()
	}
	return d.bind()
}

func (d *Device) errClosed() error { return fmt.Errorf("%s: use after Close", d.label()) }

func (d *Device) bind() error {
	runtime.LockOSThread()
	if code := d.driver.status(cuCtxSetCurrent, d.setContext...); code != success {
		runtime.UnlockOSThread()
		return fmt.Errorf("%s: %w", d.label(), d.driver.check(cuCtxSetCurrent, code))
	}
	return nil
}

// Leave ends what Enter began. The context stays current on the thread, which
// the next Enter of another device changes.
func (d *Device) Leave() { runtime.UnlockOSThread() }

// within calls a function of the driver in the GPU's context.
//
//go:uintptrescapes
func (d *Device) within(f function, arguments ...uintptr) error {
	if err := d.Enter(); err != nil {
		return err
	}
	defer d.Leave()
	return d.driver.call(f, arguments...)
}

// Hold is a share in a GPU's context, for calls that may still run when the
// device is closed. It is safe for use by many goroutines.
type Hold struct{ device *Device }

// Hold takes a share in the context, which lives until the device is closed and
// all shares are released.
func (d *Device) Hold() (*Hold, error) {
	if d.closed.Load() {
		return nil, d.errClosed()
	}
	var same uintptr // the driver counts who holds a GPU's primary context
	if err := d.driver.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&same)), uintptr(d.handle)); err != nil {
		return nil, fmt.Errorf("%s: primary context: %w", d.label(), err)
	}
	return &Hold{d}, nil
}

// Enter is [Device.Enter], but works until Release also where the device is
// closed.
func (h *Hold) Enter() error { return h.device.bind() }

// Leave ends what Enter began.
func (h *Hold) Leave() { h.device.Leave() }

// Release gives the share back. It is called once, outside Enter and Leave.
func (h *Hold) Release() error { return h.device.releaseContext() }

func (d *Device) releaseContext() error {
	if err := d.driver.call(cuDevicePrimaryCtxRelease, uintptr(d.handle)); err != nil {
		return fmt.Errorf("%s: release of the primary context: %w", d.label(), err)
	}
	return nil
}
