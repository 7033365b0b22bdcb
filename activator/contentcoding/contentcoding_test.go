package contentcoding

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

func gzipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.Bytes()
}

func deflated(s string, zlibHead bool) []byte {
	var b bytes.Buffer
	if zlibHead {
		z := zlib.NewWriter(&b)
		io.WriteString(z, s)
		z.Close()
		return b.Bytes()
	}
	z, _ := flate.NewWriter(&b, 6)
	io.WriteString(z, s)
	z.Close()
	return b.Bytes()
}

func TestReader(t *testing.T) {
	text := strings.Repeat(`{"choices":[]} `, 1000)
	broken := errors.New("reset")
	for _, x := range []struct {
		name, encoding string
		body           io.Reader
		want           string
		err            error
	}{
		{"gzip", "gzip", bytes.NewReader(gzipped(text)), text, nil},
		{"another case", " GZip ", bytes.NewReader(gzipped(text)), text, nil},
		{"x-gzip by bytes", "x-gzip", iotest.OneByteReader(bytes.NewReader(gzipped(text))), text, nil},
		{"end with the data", "gzip", iotest.DataErrReader(bytes.NewReader(gzipped(text))), text, nil},
		{"two members", "gzip", bytes.NewReader(append(gzipped("a"), gzipped("b")...)), "ab", nil},
		{"bytes behind", "gzip", bytes.NewReader(append(gzipped("a"), "\n\n\n\n\n\n\n\n\n\n\n\n"...)), "a", nil},
		{"zlib", "deflate", bytes.NewReader(deflated(text, true)), text, nil},
		{"deflate", "deflate", bytes.NewReader(deflated(text, false)), text, nil},
		{"empty", "gzip", strings.NewReader(""), "", nil},
		{"empty deflate", "deflate", strings.NewReader(""), "", nil},
		{"not gzip", "gzip", strings.NewReader(`{"choices":[]}`), "", ErrMalformed},
		{"cut", "gzip", bytes.NewReader(gzipped(text)[:60]), "", ErrMalformed},
		{"a wrong sum", "gzip", bytes.NewReader(append(gzipped("a")[:19], make([]byte, 8)...)), "", ErrMalformed},
		{"broken", "gzip", io.MultiReader(bytes.NewReader(gzipped(text)[:60]), iotest.ErrReader(broken)), "", broken},
		{"broken before it begins", "gzip", iotest.ErrReader(broken), "", broken},
		{"a bomb", "gzip", bytes.NewReader(gzipped(strings.Repeat("\x00", 8<<20))), "", ErrTooLarge},
	} {
		r, known := NewReader(x.encoding, x.body)
		if !known || r == nil {
			t.Errorf("%s: %v %v", x.name, r, known)
			continue
		}
		got, err := io.ReadAll(r)
		if !errors.Is(err, x.err) || x.err == nil && string(got) != x.want {
			t.Errorf("%s: %d bytes, %v", x.name, len(got), err)
		}
		if len(got) > 20<<20 {
			t.Errorf("%s: %d bytes came out", x.name, len(got))
		}
		if n, again := r.Read(make([]byte, 9)); n != 0 || again == nil {
			t.Errorf("%s: it goes on: %d %v", x.name, n, again)
		}
	}
	for encoding, want := range map[string]bool{"": true, "identity": true, "Identity": true, "br": false, "zstd": false, "gzip, gzip": false} {
		if r, known := NewReader(encoding, nil); r != nil || known != want {
			t.Errorf("%q: %v %v", encoding, r, known)
		}
	}
}

// TestReaderDoesNotWait: what the engine has flushed is read before it writes more.
func TestReaderDoesNotWait(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	r, _ := NewReader("gzip", b)
	next := make(chan struct{})
	go func() {
		defer a.Close()
		z := gzip.NewWriter(a)
		for range 3 {
			io.WriteString(z, "data: x\n\n")
			z.Flush()
			<-next
		}
		z.Close()
	}()
	buf := make([]byte, 100)
	for range 3 {
		n := 0
		for n < 9 {
			m, err := r.Read(buf[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		if string(buf[:n]) != "data: x\n\n" {
			t.Fatalf("%q", buf[:n])
		}
		next <- struct{}{}
	}
	if n, err := r.Read(buf); n != 0 || err != io.EOF {
		t.Fatal(n, err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(gzipped("hello"), true)
	f.Add(deflated("hello", true), false)
	f.Fuzz(func(t *testing.T, b []byte, isGzip bool) {
		encoding := "deflate"
		if isGzip {
			encoding = "gzip"
		}
		r, _ := NewReader(encoding, bytes.NewReader(b))
		n, err := io.Copy(io.Discard, r)
		if n > freeSize+maxRatio*int64(len(b))+64<<10 || err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooLarge) {
			t.Fatal(n, err)
		}
	})
}
