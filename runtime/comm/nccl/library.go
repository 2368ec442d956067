package nccl

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/internal/dynlib"
)

// libraryVariable is the environment variable with the path of another libnccl.
const libraryVariable = "SHARDGEN_LIBNCCL"

// minVersion is the first NCCL with all functions of the table: ncclCommSplit
// came with it.
const minVersion = 21800

// function is a function of NCCL.
type function uint8

const (
	ncclGetVersion function = iota
	ncclGetUniqueID
	ncclGetErrorString
	ncclGetLastError
	ncclCommInitRank
	ncclCommSplit
	ncclCommFinalize
	ncclCommDestroy
	ncclCommAbort
	ncclCommGetAsyncError
	ncclCommCount
	ncclCommUserRank
	ncclAllGather
	ncclReduceScatter
	ncclAllReduce
	ncclBroadcast
)

// prototype is a function's symbol, result and parameters in C.
type prototype struct{ symbol, result, parameters string }

// prototypes are compared with the real nccl.h, and with the calls of this
// package, by tests.
var prototypes = [...]prototype{
	ncclGetVersion:        {"ncclGetVersion", "ncclResult_t", "int *version"},
	ncclGetUniqueID:       {"ncclGetUniqueId", "ncclResult_t", "ncclUniqueId *id"},
	ncclGetErrorString:    {"ncclGetErrorString", "const char *", "ncclResult_t result"},
	ncclGetLastError:      {"ncclGetLastError", "const char *", "ncclComm_t comm"},
	ncclCommInitRank:      {"ncclCommInitRank", "ncclResult_t", "ncclComm_t *comm, int ranks, ncclUniqueId id, int rank"},
	ncclCommSplit:         {"ncclCommSplit", "ncclResult_t", "ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config"},
	ncclCommFinalize:      {"ncclCommFinalize", "ncclResult_t", "ncclComm_t comm"},
	ncclCommDestroy:       {"ncclCommDestroy", "ncclResult_t", "ncclComm_t comm"},
	ncclCommAbort:         {"ncclCommAbort", "ncclResult_t", "ncclComm_t comm"},
	ncclCommGetAsyncError: {"ncclCommGetAsyncError", "ncclResult_t", "ncclComm_t comm, ncclResult_t *error"},
	ncclCommCount:         {"ncclCommCount", "ncclResult_t", "const ncclComm_t comm, int *count"},
	ncclCommUserRank:      {"ncclCommUserRank", "ncclResult_t", "const ncclComm_t comm, int *rank"},
	ncclAllGather: {"ncclAllGather", "ncclResult_t",
		"const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream"},
	ncclReduceScatter: {"ncclReduceScatter", "ncclResult_t",
		"const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream"},
	ncclAllReduce: {"ncclAllReduce", "ncclResult_t",
		"const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream"},
	ncclBroadcast: {"ncclBroadcast", "ncclResult_t",
		"const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream"},
}

// arguments returns how many a function takes.
func (f function) arguments() int { return strings.Count(prototypes[f].parameters, ",") + 1 }

// String returns the symbol.
func (f function) String() string { return prototypes[f].symbol }

// Values of nccl.h's enumerations.
const (
	success    = 0 // ncclSuccess
	inProgress = 7 // ncclInProgress
	sum        = 0 // ncclSum

	typeInt8     = 0 // ncclInt8
	typeUint8    = 1 // ncclUint8
	typeInt32    = 2 // ncclInt32
	typeUint32   = 3 // ncclUint32
	typeInt64    = 4 // ncclInt64
	typeUint64   = 5 // ncclUint64
	typeFloat16  = 6 // ncclFloat16
	typeFloat32  = 7 // ncclFloat32
	typeFloat64  = 8 // ncclFloat64
	typeBFloat16 = 9 // ncclBfloat16
)

// IDBytes is the size of an [ID]: NCCL_UNIQUE_ID_BYTES.
const IDBytes = 128

// ID is what the ranks of a communicator find each other by.
type ID [IDBytes]byte

// byValue is an ID as C functions take it.
type byValue struct{ B [IDBytes]byte }

// Error is a status of NCCL that is not success.
type Error struct {
	Operation string // NCCL's function, such as "ncclCommInitRank"
	Code      int32  // ncclResult_t
	Text      string // NCCL's description of the status
	Detail    string // what it last warned of; may be empty
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %s (%d)", e.Operation, e.Text, e.Code)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// library has the addresses of the functions.
type library struct {
	path     string
	version  int32 // as ncclGetVersion gives it: 22707 for 2.27.7
	address  [len(prototypes)]uintptr
	initRank func(comm *uintptr, ranks int32, id byValue, rank int32) int32
}

// loaded are the libraries of this process by their path.
var loaded = struct {
	sync.Mutex
	libraries map[string]*library
}{libraries: map[string]*library{}}

// load opens NCCL.
func load() (*library, error) {
	h, err := dynlib.Open(dynlib.Library{
		Name: "NCCL", Variable: libraryVariable,
		Provides: "NVIDIA's packages libnccl2 (apt), libnccl (dnf) or nvidia-nccl-cu13 (pip)",
		Candidates: []string{
			"libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2", "/usr/lib/aarch64-linux-gnu/libnccl.so.2",
			"/usr/lib64/libnccl.so.2", "/usr/local/lib/libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
		},
	})
	if err != nil {
		return nil, err
	}
	loaded.Lock()
	defer loaded.Unlock()
	if l := loaded.libraries[h.Path()]; l != nil {
		return l, nil
	}
	l, err := newLibrary(h)
	if err == nil {
		loaded.libraries[h.Path()] = l
	}
	return l, err
}

func newLibrary(h *dynlib.Handle) (*library, error) {
	l := &library{path: h.Path()}
	var err error
	for f := range prototypes {
		if l.address[f], err = h.Symbol(prototypes[f].symbol); err != nil {
			return nil, fmt.Errorf("%w; NCCL %s or newer has it", err, versionText(minVersion))
		}
	}
	if err := l.call(ncclGetVersion, uintptr(unsafe.Pointer(&l.version))); err != nil {
		return nil, err
	}
	if l.version < minVersion {
		return nil, fmt.Errorf("NCCL at %s is version %s, expected %s or newer; set %s to the path of a newer libnccl.so.2",
			l.path, versionText(int(l.version)), versionText(minVersion), libraryVariable)
	}
	l.initRank, err = bindInitRank(l.address[ncclCommInitRank])
	return l, err
}

// versionText writes a version of NCCL as people do.
func versionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// Available says why NCCL can't be used, nil where it can.
func Available() error {
	_, err := load()
	return err
}

// Version returns NCCL's version, such as "2.27.7".
func Version() (string, error) {
	l, err := load()
	if err != nil {
		return "", fmt.Errorf("nccl: %w", err)
	}
	return versionText(int(l.version)), nil
}

// NewID returns an id for one communicator. The process that makes it must live
// until all ranks have joined the communicator.
func NewID() (ID, error) {
	var id ID
	l, err := load()
	if err == nil {
		err = l.call(ncclGetUniqueID, uintptr(unsafe.Pointer(&id)))
	}
	if err != nil {
		return ID{}, fmt.Errorf("nccl: id of a communicator: %w", err)
	}
	return id, nil
}

// call calls a function and returns its status as an error. What a pointer that
// is converted in the call points to is kept meanwhile.
//
//go:uintptrescapes
func (l *library) call(f function, arguments ...uintptr) error {
	return l.check(f, l.status(f, arguments...))
}

// status is call for those who look at the status themselves. Frequent calls
// pass a slice of arguments that they keep: then nothing is allocated.
//
//go:uintptrescapes
func (l *library) status(f function, arguments ...uintptr) int32 {
	return int32(uint32(dynlib.Call(l.address[f], arguments...))) // an ncclResult_t has 32 bits
}

// check turns a status into an error.
func (l *library) check(f function, code int32) error {
	if code == success {
		return nil
	}
	return &Error{
		Operation: f.String(), Code: code,
		Text:   cString(dynlib.Call(l.address[ncclGetErrorString], uintptr(code))),
		Detail: strings.TrimSpace(cString(dynlib.Call(l.address[ncclGetLastError], 0))),
	}
}

// cString copies a string of C, of at most a page.
func cString(address uintptr) string {
	const limit = 4096
	// Not an address of Go's: a copy of it is read as a pointer.
	first := *(**byte)(unsafe.Pointer(&address))
	if first == nil {
		return ""
	}
	n := 0
	for n < limit && *(*byte)(unsafe.Add(unsafe.Pointer(first), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(first, n))
}

var errNoDevice = errors.New("nccl: no device; open one with cuda.Open")
