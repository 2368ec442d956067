package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/internal/dynlib"
)

// Error is a status of the driver that is not success.
type Error struct {
	Operation string // the driver's function, such as "cuMemAlloc_v2"
	Code      int32  // CUresult
	Name      string // "CUDA_ERROR_OUT_OF_MEMORY"; empty where the driver does not know the code
	Text      string // the driver's description
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s returned %d, which this driver has no name for", e.Operation, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Operation, e.Name, e.Code, e.Text) + advice(e.Code)
}

// advice says what to do about a status that no retry helps against. From a failed
// kernel on, or a fault of the hardware, all calls in the context return it.
func advice(code int32) string {
	switch code {
	case 700, // CUDA_ERROR_ILLEGAL_ADDRESS
		702, // CUDA_ERROR_LAUNCH_TIMEOUT
		710, // CUDA_ERROR_ASSERT
		714, // CUDA_ERROR_HARDWARE_STACK_ERROR
		715, // CUDA_ERROR_ILLEGAL_INSTRUCTION
		716, // CUDA_ERROR_MISALIGNED_ADDRESS
		717, // CUDA_ERROR_INVALID_ADDRESS_SPACE
		718, // CUDA_ERROR_INVALID_PC
		719, // CUDA_ERROR_LAUNCH_FAILED
		721: // CUDA_ERROR_TENSOR_MEMORY_LEAK
		return "; the GPU's context is lost: the cause may be any earlier kernel of this process, the trainer's too; restart the process (compute-sanitizer finds the kernel)"
	case 214, // CUDA_ERROR_ECC_UNCORRECTABLE
		220, // CUDA_ERROR_NVLINK_UNCORRECTABLE
		226: // CUDA_ERROR_CONTAINED
		return "; the GPU's context is lost by a fault of the hardware, or of a peer's: look for Xid in the kernel's log and take the GPU out of use"
	case 802: // CUDA_ERROR_SYSTEM_NOT_READY
		return "; is the fabric manager (nvidia-fabricmanager) running, in the driver's version?"
	}
	return ""
}

// check turns a status into an error.
func (d *driver) check(f function, code int32) error {
	if code == success {
		return nil
	}
	return &Error{
		Operation: f.String(), Code: code,
		Name: d.describe(cuGetErrorName, code), Text: d.describe(cuGetErrorString, code),
	}
}

// describe returns what the driver says of a status, empty where it does not
// know it.
func (d *driver) describe(f function, code int32) string {
	var text uintptr
	if d.status(f, uintptr(code), uintptr(unsafe.Pointer(&text))) != success {
		return ""
	}
	return dynlib.Text(text)
}

// codeOf returns the status in an error, success where it has none.
func codeOf(err error) int32 {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return success
}
