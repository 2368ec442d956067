// Package fatbin says what the file zz_kernels.fatbin of a generated package
// holds: the image that nvcc made of the package's CUDA source, and behind it a
// record of what it was made from. The record is text and is found from the
// end, so that the file still begins as nvcc's own does:
//
//	(image)
//	shardgen fatbin 1
//	origin "model.yaml"
//	source 3f5a... (SHA-256 of the CUDA source)
//	image 103424 bytes, sha256 9c1e...
//	end
//
// It takes and gives bytes, does no I/O and imports the standard library only.
package fatbin

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Record says what an image was made from.
type Record struct {
	Origin string // base name of the spec
	Source string // SHA-256 of the CUDA source, lower-case hexadecimal
}

// begin is how every record begins; what stands before the last one in a file is
// the image.
const begin = "\nshardgen fatbin 1\n"

// FileName is the name of the file in a generated package.
const FileName = "zz_kernels.fatbin"

// imageMagic begins every fatbin of nvcc.
const imageMagic = "\x50\xed\x55\xba"

// form is the record with the line end before it.
var form = regexp.MustCompile(`^\nshardgen fatbin 1\norigin ("[^\n]*")\nsource ([0-9a-f]*)\nimage ([0-9]+) bytes, sha256 ([0-9a-f]{64})\nend\n$`)

// headerBytes is the length of a fatbin's header: magic, version and header length
// (2 bytes each), then the length of the rest, 8 bytes.
const headerBytes = 16

// IsImage reports whether what begins so is a fatbin.
func IsImage(beginning string) bool { return strings.HasPrefix(beginning, imageMagic) }

// CheckImage returns an error unless an image begins as nvcc's do and is as long
// as it says itself. The driver is given no length: it believes the header.
func CheckImage(image string) error {
	if !IsImage(image) || len(image) < headerBytes {
		return fmt.Errorf("an image of %d bytes that begins with %.16q is no fatbin", len(image), image)
	}
	header := []byte(image[:headerBytes])
	start, rest := uint64(binary.LittleEndian.Uint16(header[6:])), binary.LittleEndian.Uint64(header[8:])
	if start < headerBytes || start > uint64(len(image)) || rest != uint64(len(image))-start {
		return fmt.Errorf("a fatbin of %d bytes says that it has %d behind a header of %d: it is cut off, or was edited", len(image), rest, start)
	}
	return nil
}

// Seal returns the content of the file: the image and its record. An empty image
// says that the source was not compiled.
func Seal(image []byte, r Record) []byte {
	sealed := make([]byte, 0, len(image)+256+len(r.Origin))
	sealed = append(sealed, image...)
	return fmt.Appendf(sealed, "%sorigin %s\nsource %s\nimage %d bytes, sha256 %s\nend\n",
		begin, strconv.Quote(r.Origin), r.Source, len(image), hash(string(image)))
}

// Open takes the content of the file apart. The image is empty where the source
// was not compiled. An error says how the content differs from what [Seal] wrote;
// it names no file.
func Open(content string) (image string, r Record, err error) {
	at := strings.LastIndex(content, begin)
	if at < 0 {
		return "", Record{}, withoutRecord(content)
	}
	m := form.FindStringSubmatch(content[at:])
	if m == nil {
		return "", Record{}, errors.New("the record at its end is cut off or was edited")
	}
	origin, err := strconv.Unquote(m[1])
	if err != nil || strconv.Quote(origin) != m[1] {
		return "", Record{}, fmt.Errorf("the record's origin is %.80s, expected a quoted name", m[1])
	}
	image = content[:at]
	if m[3] != strconv.Itoa(len(image)) {
		return "", Record{}, fmt.Errorf("the image has %d bytes, its record says %.20s", len(image), m[3])
	}
	if got := hash(image); got != m[4] {
		return "", Record{}, fmt.Errorf("the image was changed: its SHA-256 is %s, its record says %s", got, m[4])
	}
	return image, Record{Origin: origin, Source: m[2]}, nil
}

// withoutRecord says why a content has no record that begins as it should.
func withoutRecord(content string) error {
	if strings.Contains(content, strings.ReplaceAll(begin, "\n", "\r\n")) {
		return errors.New("its line ends were converted to CRLF: keep them with the line `*.fatbin binary` in .gitattributes")
	}
	return errors.New("it has no record at its end: it is cut off, or not written by shardgen")
}

var originForm = regexp.MustCompile(`\nshardgen fatbin 1\r?\norigin ("[^\r\n]*")\r?\n`)

// Origin returns the origin that a content names, also where Open finds it
// damaged. ok is false for a content that names none.
func Origin(content string) (origin string, ok bool) {
	found := originForm.FindAllStringSubmatch(content, -1)
	if len(found) == 0 {
		return "", false
	}
	origin, err := strconv.Unquote(found[len(found)-1][1])
	return origin, err == nil
}

// Truncated reports whether a content may be the beginning of what Seal wrote:
// it names no origin, and begins with nvcc's image or with a part of a record.
func Truncated(content string) bool {
	if _, ok := Origin(content); ok {
		return false
	}
	return strings.HasPrefix(content, imageMagic) || strings.HasPrefix(content, begin) || strings.HasPrefix(begin, content)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
