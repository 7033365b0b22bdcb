package loader

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
)

// Shape limits a server. The zero value is unlimited.
type Shape struct {
	Rate       functions.Bytes // per second, per connection
	First      time.Duration   // delay before the first byte of every answer
	Stragglers float64         // fraction of the answers that are Slower
	Slower     float64         // factor by which they are slower
	Total      functions.Bytes // per second, all connections together
	Storm      time.Duration   // duration, in every Every, in which all requests get a 503
	Every      time.Duration
	Buffer     functions.Bytes // send buffer per connection in the kernel: its content counts as sent
}

// Account is the shape of a real storage account as seen by one machine.
var Account = Shape{Rate: 57 << 20, First: 30 * time.Millisecond, Stragglers: 0.01, Slower: 10, Total: 1_500_000_000}

// Register adds the flags of a server.
func (s *Shape) Register(f *flag.FlagSet) {
	f.TextVar(&s.Rate, "rate", s.Rate, "bytes a second of each connection")
	f.DurationVar(&s.First, "first", s.First, "delay before the first byte of every answer")
	f.Float64Var(&s.Stragglers, "stragglers", s.Stragglers, "share of the answers that are slower")
	f.Float64Var(&s.Slower, "slower", 10, "how many times slower those are")
	f.TextVar(&s.Total, "total", s.Total, "bytes a second of all connections together")
	f.DurationVar(&s.Storm, "storm", s.Storm, "how long, of every --every, all is answered with 503")
	f.DurationVar(&s.Every, "every", 5*time.Second, "see --storm")
	f.TextVar(&s.Buffer, "buffer", s.Buffer, "bytes of each connection's send buffer; 0 is the system's")
}

// flags returns the flags of a server with this shape.
func (s Shape) flags() []string {
	if s == (Shape{}) {
		return nil
	}
	return []string{
		"--rate", s.Rate.String(), "--first", s.First.String(),
		"--stragglers", fmt.Sprint(s.Stragglers), "--slower", fmt.Sprint(s.Slower),
		"--total", s.Total.String(), "--storm", s.Storm.String(), "--every", s.Every.String(), "--buffer", s.Buffer.String(),
	}
}

// Stats are the counters of a server.
type Stats struct {
	Bytes   int64 `json:"bytes"` // of blobs, sent
	Gets    int64 `json:"gets"`
	Heads   int64 `json:"heads"`
	Lists   int64 `json:"lists"`
	Refused int64 `json:"refused"` // during a storm
}

// server is the blob server.
type server struct {
	noise *noise
	files string // a folder served in addition to the noise; empty: none
	shape Shape
	began time.Time
	all   bucket // limits Total

	bytes, gets, heads, lists, refused atomic.Int64
}

// ServeBlobs serves contents made of the noise at path, and the files of a folder
// (empty: none), until ctx ends.
func ServeBlobs(ctx context.Context, addr, path, files string, shape Shape) error {
	n, err := openNoise(path)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return newServer(n, files, shape).run(ctx, ln)
}

func newServer(n *noise, files string, shape Shape) *server {
	return &server{noise: n, files: files, shape: shape, began: time.Now(), all: bucket{rate: float64(shape.Total)}}
}

// ofConnection is the context key of a connection's bucket.
type ofConnection struct{}

func (s *server) run(ctx context.Context, ln net.Listener) error {
	h := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*net.TCPConn); ok && s.shape.Buffer > 0 {
				_ = t.SetWriteBuffer(int(s.shape.Buffer)) // the kernel may choose another size
			}
			return context.WithValue(ctx, ofConnection{}, &bucket{rate: float64(s.shape.Rate)})
		},
	}
	stop := context.AfterFunc(ctx, func() { h.Close() })
	defer stop()
	if err := h.Serve(ln); ctx.Err() == nil {
		return err
	}
	return nil
}

// bucket limits bytes to a rate.
type bucket struct {
	rate float64 // bytes per second; 0: unlimited

	mu   sync.Mutex // guards next
	next time.Time  // earliest time of the next bytes
}

// pacingSlack is the most that a bucket catches up after a late timer, so that timer delays do
// not lower the rate.
const pacingSlack = 20 * time.Millisecond

// take returns the wait before n bytes may be sent.
func (b *bucket) take(now time.Time, n int64, slower float64) time.Duration {
	if b.rate <= 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if behind := now.Add(-pacingSlack); b.next.Before(behind) {
		b.next = behind
	}
	wait := b.next.Sub(now)
	b.next = b.next.Add(time.Duration(float64(n) * slower / b.rate * float64(time.Second)))
	return wait
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/stats" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Stats{s.bytes.Load(), s.gets.Load(), s.heads.Load(), s.lists.Load(), s.refused.Load()})
		return
	}
	if !backoff.Sleep(r.Context(), s.shape.First) {
		return
	}
	if s.shape.Storm > 0 && time.Since(s.began)%s.shape.Every < s.shape.Storm {
		s.refused.Add(1)
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "ServerBusy")
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/"+account+"/"+container)
	if !ok {
		refuse(w, http.StatusNotFound, "ContainerNotFound")
		return
	}
	if r.URL.Query().Get("comp") == "list" {
		s.lists.Add(1)
		s.list(w, r.URL.Query().Get("prefix"))
		return
	}
	dir, name, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if r.Method == http.MethodHead {
		s.heads.Add(1)
	} else {
		s.gets.Add(1)
	}
	if dir == filesFolder && s.files != "" {
		s.file(w, r, name)
		return
	}
	size, sum, err := parseFolder(dir)
	if err != nil || name != weights && name != config {
		refuse(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	s.blob(w, r, dir, name, size, sum)
}

// filesFolder is the container's folder of the files.
const filesFolder = "files"

// file serves one file of the folder.
func (s *server) file(w http.ResponseWriter, r *http.Request, name string) {
	root, err := os.OpenRoot(s.files)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError")
		return
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		refuse(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		refuse(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	from, to, ok := s.head(w, r, blobVersion(filesFolder, name), fi.Size(), nil)
	if !ok {
		return
	}
	_ = s.paced(r.Context(), w, f, func(maximum int64, yield func(section) error) error {
		for at := from; at < to; at += maximum {
			if err := yield(section{at: at, len: min(maximum, to-at)}); err != nil {
				return err
			}
		}
		return nil
	})
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("x-ms-error-code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
}

// blobVersion returns the only version of a blob.
func blobVersion(dir, name string) string {
	return fmt.Sprintf("0x8D%013X", xxh3.HashString(dir+"/"+name)&(1<<52-1))
}

func (s *server) list(w http.ResponseWriter, prefix string) {
	dir := strings.TrimSuffix(prefix, "/")
	size, sum, err := parseFolder(dir)
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>`)
	item := func(name string, size int64, md5 []byte) {
		fmt.Fprintf(&b, "<Blob><Name>%s/%s</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 "+
			"GMT</Last-Modified><Etag>%s</Etag><Content-Length>%d</Content-Length>", dir, name, blobVersion(dir, name), size)
		if md5 != nil {
			fmt.Fprintf(&b, "<Content-MD5>%s</Content-MD5>", base64.StdEncoding.EncodeToString(md5))
		}
		b.WriteString("<BlobType>BlockBlob</BlobType></Properties></Blob>")
	}
	if dir == filesFolder && s.files != "" {
		list, err := os.ReadDir(s.files)
		if err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError")
			return
		}
		for _, e := range list {
			if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() {
				item(e.Name(), fi.Size(), nil)
			}
		}
	} else if err == nil {
		var digest []byte
		if sum {
			if digest, err = s.noise.md5(size); err != nil {
				refuse(w, http.StatusInternalServerError, "InternalError")
				return
			}
		}
		item(config, int64(len(configJSON)), nil)
		item(weights, size, digest)
	}
	b.WriteString(`</Blobs><NextMarker /></EnumerationResults>`)
	w.Header().Set("Content-Type", "application/xml")
	_, _ = io.WriteString(w, b.String())
}

// head answers the head of a request for a blob, or its error. ok is false if no body
// follows.
func (s *server) head(w http.ResponseWriter, r *http.Request, version string, size int64, md5 []byte) (from, to int64, ok bool) {
	etag := `"` + version + `"`
	if m := r.Header.Get("If-Match"); m != "" && m != etag && m != "*" {
		refuse(w, http.StatusPreconditionFailed, "ConditionNotMet")
		return 0, 0, false
	}
	h := w.Header()
	h.Set("ETag", etag)
	h.Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Accept-Ranges", "bytes")
	h.Set("x-ms-blob-type", "BlockBlob")
	rng := r.Header.Get("x-ms-range")
	if rng == "" {
		rng = r.Header.Get("Range")
	}
	from, to, status := int64(0), size, http.StatusOK
	if rng != "" {
		if from, to, ok = parseRange(rng, size); !ok {
			h.Set("Content-Range", fmt.Sprintf("bytes */%d", size))
			refuse(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return 0, 0, false
		}
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, size))
		status = http.StatusPartialContent
	}
	if md5 != nil && (status == http.StatusOK || r.Method == http.MethodHead) {
		h.Set("Content-MD5", base64.StdEncoding.EncodeToString(md5))
	}
	h.Set("Content-Length", strconv.FormatInt(to-from, 10))
	w.WriteHeader(status)
	return from, to, r.Method != http.MethodHead
}

// blob serves generated contents.
func (s *server) blob(w http.ResponseWriter, r *http.Request, dir, name string, size int64, sum bool) {
	var digest []byte
	if name == config {
		size = int64(len(configJSON))
	} else if sum {
		var err error
		if digest, err = s.noise.md5(size); err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError")
			return
		}
	}
	from, to, ok := s.head(w, r, blobVersion(dir, name), size, digest)
	if !ok {
		return
	}
	if name == config {
		n, _ := w.Write(configJSON[from:to])
		s.bytes.Add(int64(n))
		return
	}
	f, err := os.Open(s.noise.path)
	if err != nil {
		return
	}
	defer f.Close()
	_ = s.paced(r.Context(), w, f, func(maximum int64, yield func(section) error) error {
		return s.noise.sections(size, from, to, maximum, yield)
	})
}

// paced sends sections at the shape's rate, from the page cache if possible. An error
// means that the client disconnected.
func (s *server) paced(ctx context.Context, w http.ResponseWriter, f *os.File,
	sections func(maximum int64, yield func(section) error) error) error {
	own, slower, maximum := (*bucket)(nil), 1.0, s.noise.period
	if s.shape.Rate > 0 || s.shape.Total > 0 {
		own, _ = ctx.Value(ofConnection{}).(*bucket)
		maximum = 256 << 10
		if rand.Float64() < s.shape.Stragglers {
			slower = s.shape.Slower
		}
	}
	return sections(maximum, func(p section) error {
		if own != nil {
			now := time.Now()
			if !backoff.Sleep(ctx, max(own.take(now, p.len, slower), s.all.take(now, p.len, 1))) {
				return ctx.Err()
			}
		}
		if p.mem != nil {
			n, err := w.Write(p.mem)
			s.bytes.Add(int64(n))
			return err
		}
		if _, err := f.Seek(p.at, io.SeekStart); err != nil {
			return err
		}
		n, err := io.CopyN(w, f, p.len) // sendfile
		s.bytes.Add(n)
		return err
	})
}

// parseRange parses "bytes=a-b" and "bytes=a-"; the result is [from, to).
func parseRange(h string, size int64) (from, to int64, ok bool) {
	spec, ok := strings.CutPrefix(h, "bytes=")
	a, b, cut := strings.Cut(spec, "-")
	if !ok || !cut {
		return 0, 0, false
	}
	from, err := strconv.ParseInt(a, 10, 64)
	if err != nil || from < 0 || from >= size {
		return 0, 0, false
	}
	to = size
	if b != "" {
		last, err := strconv.ParseInt(b, 10, 64)
		if err != nil || last < from {
			return 0, 0, false
		}
		to = min(to, last+1)
	}
	return from, to, true
}
