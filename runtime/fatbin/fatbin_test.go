package fatbin

import (
	"bytes"
	"strings"
	"testing"
)

const source = "3f5a00000000000000000000000000000000000000000000000000000000beef"

// image looks like nvcc's, and holds what a careless search would take for the
// record.
var image = []byte(imageMagic + "\x00\x01\r\n" + begin + "origin \"other.yaml\"\nsource 00\nend\n\xff")

func TestWhatIsSealedOpens(t *testing.T) {
	for name, c := range map[string]struct {
		image  []byte
		record Record
	}{
		"an image":             {image, Record{"model.yaml", source}},
		"not compiled":         {nil, Record{"model.yaml", source}},
		"an odd name":          {image, Record{"a \"b\"\n\u202e.yaml", source}},
		"no source":            {image, Record{"model.yaml", ""}},
		"a record in an image": {Seal(image, Record{"inner.yaml", source}), Record{"outer.yaml", source}},
	} {
		t.Run(name, func(t *testing.T) {
			sealed := Seal(c.image, c.record)
			got, record, err := Open(string(sealed))
			if err != nil || got != string(c.image) || record != c.record {
				t.Errorf("opened %d bytes, %+v, error %v", len(got), record, err)
			}
			if origin, ok := Origin(string(sealed)); !ok || origin != c.record.Origin {
				t.Errorf("origin %q, %t", origin, ok)
			}
			if !bytes.HasPrefix(sealed, c.image) || Truncated(string(sealed)) {
				t.Error("the file does not begin with the image, or looks cut off")
			}
		})
	}
}

func TestDamageIsNamed(t *testing.T) {
	sealed := string(Seal(image, Record{"model.yaml", source}))
	empty := string(Seal(nil, Record{"model.yaml", source}))
	cases := map[string]struct{ content, want string }{
		"nothing":                      {"", "it has no record"},
		"nvcc's own":                   {imageMagic + "\x00\x01", "it has no record"},
		"cut off in the record":        {sealed[:len(sealed)-1], "cut off or was edited"},
		"cut off at the front":         {sealed[1:], "the image has"},
		"a byte of the image changed":  {strings.Replace(sealed, "\x01", "\x02", 1), "the image was changed"},
		"more behind it":               {sealed + "\n", "cut off or was edited"},
		"the record's source removed":  {strings.Replace(sealed, source, "?", 1), "cut off or was edited"},
		"an image before an empty one": {imageMagic + empty, "the image has 4 bytes, its record says 0"},
		"an origin that is no name":    {strings.Replace(empty, `"model.yaml"`, `"model\yaml"`, 1), "expected a quoted name"},
		"CRLF":                         {strings.ReplaceAll(sealed, "\n", "\r\n"), ".gitattributes"},
		"CRLF, not compiled":           {strings.ReplaceAll(empty, "\n", "\r\n"), ".gitattributes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, _, err := Open(c.content); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestEveryCutIsFound(t *testing.T) {
	for _, sealed := range []string{string(Seal([]byte(imageMagic+"\x00\x01"), Record{"model.yaml", source})), string(Seal(nil, Record{"model.yaml", source}))} {
		for n := range len(sealed) {
			if _, _, err := Open(sealed[:n]); err == nil {
				t.Errorf("the first %d of %d bytes open", n, len(sealed))
			}
			origin, ok := Origin(sealed[:n])
			if ok != (origin == "model.yaml") || ok == Truncated(sealed[:n]) && n >= len(imageMagic) {
				t.Errorf("the first %d of %d bytes: origin %q, %t, truncated %t", n, len(sealed), origin, ok, Truncated(sealed[:n]))
			}
		}
	}
}

func TestOriginIsReadOfDamagedFilesToo(t *testing.T) {
	sealed := string(Seal(image, Record{"model.yaml", source}))
	for name, content := range map[string]string{
		"CRLF":      strings.ReplaceAll(sealed, "\n", "\r\n"),
		"edited":    sealed + "x",
		"cut front": sealed[5:],
	} {
		if origin, ok := Origin(content); !ok || origin != "model.yaml" {
			t.Errorf("%s: origin %q, %t", name, origin, ok)
		}
	}
	for _, content := range []string{"package m\n", "a file by hand", "\nshardgen fatbin 1\norigin model.yaml\n"} {
		if origin, ok := Origin(content); ok {
			t.Errorf("%q has origin %q", content, origin)
		}
	}
	if Truncated("package m\n") {
		t.Error("a file by hand looks like a fatbin that was cut off")
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(string(Seal(image, Record{"model.yaml", source})))
	f.Add(strings.ReplaceAll(string(Seal(nil, Record{"a", ""})), "\n", "\r\n"))
	f.Fuzz(func(t *testing.T, content string) {
		image, record, err := Open(content)
		if err == nil && string(Seal([]byte(image), record)) != content {
			t.Errorf("%q opens, but its seal is another", content)
		}
	})
}

func TestOnlyAnImageThatIsAsLongAsItSaysIsOne(t *testing.T) {
	good := imageMagic + "\x01\x00\x10\x00\x03\x00\x00\x00\x00\x00\x00\x00abc"
	for image, want := range map[string]string{
		good:                             "",
		good[:len(good)-1]:               "says that it has 3 behind a header of 16",
		good + "d":                       "says that it has 3",
		good[:12]:                        "no fatbin",
		"":                               "no fatbin",
		"\x7fELF" + good[4:]:             "no fatbin",
		good[:6] + "\x00" + good[7:]:     "behind a header of 0",
		good[:6] + "\xff\xff" + good[8:]: "behind a header of 65535",
		good[:8] + "\xff\xff\xff\xff\xff\xff\xff\xff" + good[16:]: "it is cut off",
	} {
		err := CheckImage(image)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", image, err, want)
		}
	}
}
