package rendezvous

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// The handshake. Both sides send a hello:
//
//	magic [8] version u16 rank u32 size u32 nonce [16] length u8 name [length]
//
// The member then proves that it has the token: HMAC-SHA256 with the token as
// key, of a role and both hellos, so that it is worth nothing on another
// connection. Rank 0 answers with a verdict: 0 and its own proof, or 1 or 2, a
// length u16 and the reason. From then on frames go both ways: length u32, message in
// JSON. Integers are big-endian.
const (
	magic           = "shardgen"
	protocolVersion = 1
	proofBytes      = sha256.Size
	maxReason       = 4 << 10
	// maxFrame bounds a frame, MaxPayload what fits in one (JSON takes 4 bytes for
	// 3 of a payload).
	maxFrame   = 2 << 20
	MaxPayload = 1 << 20

	handshakeWait = 5 * time.Second
)

// hello is what one side of a connection says about itself.
type hello struct {
	rank, size int
	name       string // of the process, for messages
	raw        []byte // as sent
}

// errStranger is a peer that doesn't speak the protocol.
var errStranger = errors.New("it does not speak shardgen's rendezvous protocol")

func newHello(rank, size int, name string) hello {
	if len(name) > 255 {
		name = name[:255]
	}
	raw := append([]byte(magic), 0, protocolVersion)
	raw = binary.BigEndian.AppendUint32(raw, uint32(rank))
	raw = binary.BigEndian.AppendUint32(raw, uint32(size))
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails: it ends the program instead
	raw = append(append(raw, nonce...), byte(len(name)))
	return hello{rank: rank, size: size, name: name, raw: append(raw, name...)}
}

// readHello reads the other side's hello. The error of another version is a
// *versionError.
func readHello(r io.Reader) (hello, error) {
	raw := make([]byte, len(magic)+2+4+4+16+1, 512)
	if _, err := io.ReadFull(r, raw[:len(magic)+2]); err != nil {
		return hello{}, fmt.Errorf("%w: %w", errStranger, err)
	}
	if string(raw[:len(magic)]) != magic {
		return hello{}, fmt.Errorf("%w: it sent %q", errStranger, raw[:len(magic)])
	}
	if v := binary.BigEndian.Uint16(raw[len(magic):]); v != protocolVersion {
		return hello{}, &versionError{theirs: int(v)}
	}
	body := raw[len(magic)+2:]
	if _, err := io.ReadFull(r, body); err != nil {
		return hello{}, fmt.Errorf("its hello is cut short: %w", err)
	}
	name := make([]byte, body[len(body)-1])
	if _, err := io.ReadFull(r, name); err != nil {
		return hello{}, fmt.Errorf("its hello is cut short: %w", err)
	}
	return hello{
		rank: int(binary.BigEndian.Uint32(body) & (1<<31 - 1)),
		size: int(binary.BigEndian.Uint32(body[4:]) & (1<<31 - 1)),
		name: printable(string(name)),
		raw:  append(raw, name...),
	}, nil
}

// printable keeps control characters out of messages and terminals. Lines and
// tabs stay: the stack of a panic has them.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

// versionError is a peer that speaks another version of the protocol.
type versionError struct{ theirs int }

func (e *versionError) Error() string {
	return fmt.Sprintf("it speaks version %d of the rendezvous protocol, this process version %d; run the same build on all ranks", e.theirs, protocolVersion)
}

// proof is what only one that has the token can say on this connection.
func proof(token, role string, member, host hello) []byte {
	m := hmac.New(sha256.New, []byte(token))
	for _, part := range [][]byte{[]byte(role), member.raw, host.raw} {
		_ = binary.Write(m, binary.BigEndian, uint32(len(part)))
		_, _ = m.Write(part)
	}
	return m.Sum(nil)
}

const (
	memberRole = "member"
	hostRole   = "host"
)

// The verdicts.
const (
	accepted = iota
	// refusedHere: this is another job, or its group is complete; the right rank 0
	// may be at another port.
	refusedHere
	// refusedForGood: the member has the token, and trying again changes nothing.
	refusedForGood
)

// refusedError is a host's reason to refuse a member.
type refusedError struct {
	reason string
	final  bool
}

func (e *refusedError) Error() string { return e.reason }

// verdict returns what goes to the member.
func (e *refusedError) verdict() []byte {
	reason := e.reason[:min(len(e.reason), maxReason)]
	status := byte(refusedHere)
	if e.final {
		status = refusedForGood
	}
	return append(binary.BigEndian.AppendUint16([]byte{status}, uint16(len(reason))), reason...)
}

// readVerdict returns the host's proof, or its reason to refuse as a
// *refusedError.
func readVerdict(r io.Reader) (proof []byte, err error) {
	var status [1]byte
	if _, err := io.ReadFull(r, status[:]); err != nil {
		return nil, fmt.Errorf("it gave no answer: %w", err)
	}
	if status[0] == accepted {
		proof = make([]byte, proofBytes)
		_, err = io.ReadFull(r, proof)
		return proof, err
	}
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint16(length[:])
	if n == 0 || n > maxReason || status[0] > refusedForGood {
		return nil, fmt.Errorf("%w: verdict %d with a reason of %d bytes", errStranger, status[0], n)
	}
	text := make([]byte, n)
	if _, err = io.ReadFull(r, text); err != nil {
		return nil, err
	}
	return nil, &refusedError{reason: printable(string(text)), final: status[0] == refusedForGood}
}

// kind says what a message is for.
type kind string

const (
	kindWaiting  kind = "waiting"  // rank 0 to members before all have come: Ranks are missing
	kindRefused  kind = "refused"  // rank 0 to members: the rendezvous failed, Text says why
	kindStart    kind = "start"    // all have come
	kindData     kind = "data"     // Payload of exchange number Number
	kindFailed   kind = "failed"   // rank From has failed or ended the job: Text, Sequence, Ranks
	kindLeft     kind = "left"     // rank From is done
	kindAbort    kind = "abort"    // channel Channel is aborted: Text, Sequence, Ranks
	kindClosed   kind = "closed"   // a member of Channel is done with it: Progress is its last
	kindQuestion kind = "question" // question Number: how far is Channel, with requests up to Sequence?
	kindAnswer   kind = "answer"   // of question Number, to rank To; no Progress: knows no such channel
)

// message is what ranks send each other, by way of rank 0.
type message struct {
	Kind     kind      `json:"kind"`
	From     int       `json:"from"`
	To       int       `json:"to,omitempty"` // of an answer
	Number   uint64    `json:"number,omitempty"`
	Channel  string    `json:"channel,omitempty"`
	Text     string    `json:"text,omitempty"`
	Sequence uint64    `json:"sequence,omitempty"`
	Ranks    []int     `json:"ranks,omitempty"`
	Progress *Progress `json:"progress,omitempty"`
	Payload  []byte    `json:"payload,omitempty"`
	cause    error     // of Text; it does not go over a connection
}

// encode returns a message as a frame.
func encode(m *message) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(body) > maxFrame {
		return nil, fmt.Errorf("message of %d bytes, at most %d go over the control channel", len(body), maxFrame)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...), nil
}

// readMessage reads a frame.
func readMessage(r io.Reader) (*message, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n == 0 || n > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes, expected 1 to %d: the connection is out of step", n, maxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	m := &message{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, fmt.Errorf("a frame of %d bytes is no message: %w", n, err)
	}
	m.Text = printable(m.Text)
	if m.Progress != nil {
		for i := range m.Progress.Requests {
			m.Progress.Requests[i].Subject = printable(m.Progress.Requests[i].Subject)
		}
	}
	return m, nil
}
