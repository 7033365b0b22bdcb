package sourcetest

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

var update = flag.Bool("update", false, "write the transcripts of sources anew: read what changed in them")

// Front stands before the server of a source: it records requests and changes answers.
type Front struct {
	mu     sync.Mutex
	lines  []string
	answer func(w http.ResponseWriter, r *http.Request) // in place of the server; nil: the server answers
	change func(r *http.Response)                       // of what the server answered
	conns  *Connections                                 // of Serve
}

// Serve serves a front before the server at a URL until the test ends, and returns its own URL.
func (f *Front) Serve(t *testing.T, server string) string {
	srv := httptest.NewUnstartedServer(f.Before(server))
	f.conns = CountConnections(srv)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// recorded are the fields of requests that a transcript has.
var recorded = []string{"Range", "X-Ms-Range", "If-Match", "Accept-Encoding", "Authorization", "Content-Type", "Content-Length", "Transfer-Encoding", "X-Ms-Version",
	"X-Ms-Range-Get-Content-Crc64", "X-Ms-Blob-Type",
	"X-Amz-Checksum-Mode", "X-Amz-Content-Sha256", "Metadata-Flavor", "Cookie", "Accept", "Expect", "If-Unmodified-Since"}

// Before returns the handler of a front before the server at a URL.
func (f *Front) Before(server string) http.Handler {
	to, err := url.Parse(server)
	if err != nil {
		panic(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		ModifyResponse: func(r *http.Response) error {
			f.mu.Lock()
			change := f.change
			f.mu.Unlock()
			if link := r.Header.Get("Link"); link != "" { // to the next page
				r.Header.Set("Link", strings.ReplaceAll(link, server, "http://"+r.Request.Host))
			}
			if change != nil {
				change(r)
			}
			return nil
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line := r.Method + " " + r.URL.RequestURI()
		for _, name := range recorded {
			if v := r.Header.Get(name); v != "" {
				if name == "Authorization" {
					v, _, _ = strings.Cut(v, " ")
				}
				line += fmt.Sprintf(" %s=%q", strings.ToLower(name), v)
			}
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			body, _ := io.ReadAll(r.Body)
			line += fmt.Sprintf(" body %q", body)
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		f.mu.Lock()
		f.lines = append(f.lines, line)
		answer := f.answer
		f.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

func (f *Front) set(answer func(http.ResponseWriter, *http.Request), change func(*http.Response)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer, f.change = answer, change
}

// take returns the requests since the last call, in the order of their text where they came
// at once.
func (f *Front) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := f.lines
	f.lines = nil
	return lines
}

// file of the folder that a transcript is of.
const transcribed = "model.safetensors"

// Files yields what is in the folder that a transcript is of.
func Files(yield func(name string, body []byte) bool) {
	for _, f := range files {
		if !yield(f.name, bytes.Clone(f.body)) {
			return
		}
	}
}

var files = []struct {
	name string
	body []byte
}{
	{"config.json", []byte("{}")},
	{transcribed, bytes.Repeat([]byte("0123456789"), 10)},
	{"a b/ü+#%&.json", []byte("odd")},
	{"empty.bin", []byte{}},
	{"sub/.hidden/x.json", []byte("x")},
}

// bodyOf is that of a file.
func bodyOf(name string) []byte {
	for _, f := range files {
		if f.name == name {
			return f.body
		}
	}
	return nil
}

// Transcript is what RunTranscript needs of a source.
type Transcript struct {
	Source   Source
	Writer   Writer           // nil: nothing is written
	Written  http.HandlerFunc // answers writes; nil: the server does
	Front    *Front
	Location string   // holds Files
	Secrets  []string // must be in no error
	Hide     []string // what differs from run to run, such as addresses
	File     string   // in testdata; transcript.txt if empty
}

// RunTranscript compares what a source requests, and what it makes of answers of all kinds,
// with a file in testdata. No connection stays in use afterwards.
func RunTranscript(t *testing.T, x Transcript) {
	t.Helper()
	var out strings.Builder
	write := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	requests := func() {
		for _, l := range x.Front.take() {
			write("\t%s", l)
		}
	}
	plan := func(location string) source.Plan {
		p, err := x.Source.Plan(t.Context(), location, nil)
		write("plan %s", location)
		lines := x.Front.take()
		slices.Sort(lines) // those for digests come at once
		for _, l := range lines {
			write("\t%s", l)
		}
		if err != nil {
			t.Errorf("%s: %v", location, err)
		}
		for _, f := range p.Files {
			write("\tfile %q %d bytes version %s md5 %x crc32c %x crc64 %x sha256 %s ref %s",
				f.Name, f.Size, f.Version, f.MD5, f.CRC32C, f.CRC64, f.SHA256, f.Ref)
		}
		for _, l := range p.Left {
			write("\tleft %q %s", l.Name, l.Reason)
		}
		return p
	}
	planned := plan(x.Location).Files
	plan(x.Location + "/" + transcribed)
	i := slices.IndexFunc(planned, func(f source.File) bool { return f.Name == transcribed })
	if i < 0 {
		t.Fatalf("%s is not in %+v", transcribed, planned)
	}
	file := planned[i]
	for _, f := range planned {
		if f.Size > 0 {
			b, err := readBody(t.Context(), x.Source, f, f.Size/2, f.Size-f.Size/2)
			if want := bodyOf(f.Name)[f.Size/2:]; err != nil || !bytes.Equal(b, want) {
				t.Errorf("%s: %q, %v, want %q", f.Name, b, err, want)
			}
			write("read %q from %d", f.Name, f.Size/2)
			requests()
		}
	}
	writeBody := func(name string, size int64) error {
		return x.Writer.Write(t.Context(), x.Location, name, strings.NewReader("a cache"), size)
	}
	if x.Writer != nil {
		x.Front.set(x.Written, nil)
		if err := writeBody("compile cache/x+y.tar", 7); err != nil {
			t.Error(err)
		}
		write("write")
		requests()
	}
	broken := true
	describe := func(what string, err error) {
		count := ""
		if n := len(x.Front.take()); !broken { // a broken connection is tried again, but not where it is new
			count = fmt.Sprintf(", %d requests", n)
		}
		var e *source.Error
		if err == nil || !errors.As(err, &e) {
			write("\t%s: %v%s", what, err, count)
			return
		}
		for _, s := range x.Secrets {
			if strings.Contains(fmt.Sprintf("%+v %v", *e, err), s) {
				t.Errorf("%s: %v holds a secret", what, err)
			}
		}
		pause := ""
		if e.Busy {
			pause += " busy"
		}
		if e.RetryAfter > 0 {
			pause += fmt.Sprint(" after ", e.RetryAfter)
		}
		write("\t%s: %s%s%s\n\t\t%s", what, e.Kind, pause, count, err)
	}
	readAll := func() error {
		r, err := x.Source.Read(t.Context(), file, 10, 20)
		if err != nil {
			return err
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if want := bodyOf(transcribed)[10:30]; err == nil && !bytes.Equal(b, want) {
			return fmt.Errorf("read %d bytes, other than the file's: %v", len(b), !bytes.HasPrefix(want, b))
		}
		return err
	}
	for _, a := range answers {
		x.Front.set(a.give, nil)
		broken = a.status == 0
		write("%s", a)
		_, err := x.Source.Plan(t.Context(), x.Location, nil)
		describe("plan", err)
		describe("read", readAll())
		if x.Writer != nil {
			describe("write", writeBody("compile cache/x.tar", 7))
		}
	}
	write("404, for each file")
	x.Front.set(answer{status: 404}.give, nil)
	for _, f := range planned {
		if f.Version != "" {
			_, err := readBody(t.Context(), x.Source, f, 0, max(f.Size, 1))
			describe("read", err)
		}
	}
	for _, c := range changes {
		x.Front.set(nil, c.change)
		write("a range %s", c.name)
		describe("read", readAll())
		if b, ok := x.Source.(blockReader); ok {
			into := make([]byte, 20)
			err := b.ReadInto(t.Context(), file, 10, into)
			if err == nil && !bytes.Equal(into, bodyOf(transcribed)[10:30]) {
				err = errors.New("other bytes than the file's")
			}
			describe("read into a buffer", err)
		}
	}
	if x.Writer != nil {
		x.Front.set(x.Written, nil)
		err := writeBody("compile cache/x.tar", 9)
		write("write of too few bytes\n\t%s %v", source.KindOf(err), err)
	}
	x.Front.set(nil, nil)
	if err := readAll(); err != nil {
		t.Errorf("when the server answers again: %v", err)
	}
	text := out.String()
	for _, h := range x.Hide {
		text = strings.ReplaceAll(text, h, "HIDDEN")
		if _, host, ok := strings.Cut(h, "://"); ok {
			text = strings.ReplaceAll(text, host, "HOST")
		}
	}
	text = blockID.ReplaceAllString(text, "blockid=ID")
	Compare(t, cmp.Or(x.File, "transcript.txt"), text)
	if c, ok := x.Source.(interface{ Close() }); ok && x.Front.conns != nil {
		x.Front.conns.CheckClosed(t, c)
	}
}

var blockID = regexp.MustCompile(`blockid=[A-Za-z0-9%]+`)

// Compare compares a text with a file in testdata, which -update writes anew.
func Compare(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o777), os.WriteFile(file, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(string(b), "\n")
	for i, line := range strings.Split(text, "\n") {
		if i >= len(want) || line != want[i] {
			t.Errorf("line %d of the transcript:\n%s\nwant\n%s", i+1, line, strings.Join(want[min(i, len(want)):min(i+1, len(want))], ""))
		}
	}
}

// Describe is all that an error of a source holds.
func Describe(err error) string {
	e, ok := errors.AsType[*source.Error](err)
	if !ok {
		return fmt.Sprint(err)
	}
	return fmt.Sprintf("%s busy %v after %v: %s", e.Kind, e.Busy, e.RetryAfter, e)
}
