package nccl

import (
	"errors"
	"fmt"
	"strings"
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
	ncclGroupStart
	ncclGroupEnd
)

// prototypes are compared with the real nccl.h, and with the calls of this
// package, by tests.
var prototypes = [...]dynlib.Prototype{
	ncclGetVersion:        "ncclResult_t ncclGetVersion(int *version)",
	ncclGetUniqueID:       "ncclResult_t ncclGetUniqueId(ncclUniqueId *id)",
	ncclGetErrorString:    "const char *ncclGetErrorString(ncclResult_t result)",
	ncclGetLastError:      "const char *ncclGetLastError(ncclComm_t comm)",
	ncclCommInitRank:      "ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)",
	ncclCommSplit:         "ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config)",
	ncclCommFinalize:      "ncclResult_t ncclCommFinalize(ncclComm_t comm)",
	ncclCommDestroy:       "ncclResult_t ncclCommDestroy(ncclComm_t comm)",
	ncclCommAbort:         "ncclResult_t ncclCommAbort(ncclComm_t comm)",
	ncclCommGetAsyncError: "ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)",
	ncclCommCount:         "ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)",
	ncclCommUserRank:      "ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)",
	ncclAllGather:         "ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)",
	ncclReduceScatter:     "ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)",
	ncclAllReduce:         "ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)",
	ncclBroadcast:         "ncclResult_t ncclBroadcast(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)",
	ncclGroupStart:        "ncclResult_t ncclGroupStart()",
	ncclGroupEnd:          "ncclResult_t ncclGroupEnd()",
}

// arguments returns how many a function takes.
func (f function) arguments() int { return prototypes[f].Arguments() }

// String returns the symbol.
func (f function) String() string { return prototypes[f].Symbol() }

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
	version   int32 // as ncclGetVersion gives it: 22707 for 2.27.7
	functions []uintptr
	initRank  func(comm *uintptr, ranks int32, id byValue, rank int32) int32 // ncclCommInitRank
}

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
	l := &library{}
	if l.functions, err = h.Functions(prototypes[:]); err != nil {
		return nil, fmt.Errorf("%w; NCCL %s or newer has it", err, versionText(minVersion))
	}
	if err := l.call(ncclGetVersion, uintptr(unsafe.Pointer(&l.version))); err != nil {
		return nil, err
	}
	if l.version < minVersion {
		return nil, fmt.Errorf("NCCL at %s is version %s, expected %s or newer; set %s to the path of a newer libnccl.so.2",
			h.Path(), versionText(int(l.version)), versionText(minVersion), libraryVariable)
	}
	dynlib.Bind(&l.initRank, l.functions[ncclCommInitRank])
	return l, nil
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
	return int32(uint32(dynlib.Call(l.functions[f], arguments...))) // an ncclResult_t has 32 bits
}

// check turns a status into an error.
func (l *library) check(f function, code int32) error {
	if code == success {
		return nil
	}
	return &Error{
		Operation: f.String(), Code: code,
		Text:   dynlib.Text(dynlib.Call(l.functions[ncclGetErrorString], uintptr(code))),
		Detail: strings.TrimSpace(dynlib.Text(dynlib.Call(l.functions[ncclGetLastError], 0))),
	}
}

var errNoDevice = errors.New("nccl: no device; open one with cuda.Open")
