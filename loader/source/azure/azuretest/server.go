// Package azuretest is a small true blob server for tests: it lists and
// serves ranges as Azure Blob Storage does, with injected faults.
package azuretest

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Account, Container and Key of every server.
const (
	Account   = "faultaccount"
	Container = "weights"
	Key       = "c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA=="
)

// Server serves one container.
type Server struct {
	URL string

	mu    sync.Mutex // guards the fields below
	blobs map[string]blob
	fault func(w http.ResponseWriter, r *http.Request, n int) bool
	gets  []string // "name range" of every ranged GET
	lists int
	etag  int
}

type blob struct {
	body []byte
	etag string
	md5  []byte
	enc  string
}

// New starts a server; the test ends it.
func New(t testing.TB) *Server {
	s := Of("")
	h := httptest.NewServer(s)
	s.URL = h.URL
	t.Cleanup(h.Close)
	return s
}

// Of returns a server without a listener, for url.
func Of(url string) *Server { return &Server{URL: url, blobs: make(map[string]blob)} }

// Getenv is the environment in which a source finds this server.
func (s *Server) Getenv(name string) string {
	if name == "AZURE_STORAGE_CONNECTION_STRING" {
		return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;BlobEndpoint=%s/%s;", Account, Key, s.URL, Account)
	}
	return ""
}

// Location of a folder in the container.
func Location(prefix string) string { return "az://" + Account + "/" + Container + "/" + prefix }

// Put stores a blob with its MD5, as a new version.
func (s *Server) Put(name string, body []byte) {
	sum := md5.Sum(body)
	s.PutAs(name, body, sum[:], "")
}

// PutAs stores a blob with any MD5 (nil for none) and content encoding.
func (s *Server) PutAs(name string, body, sum []byte, encoding string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.etag++
	s.blobs[name] = blob{body: slices.Clone(body), etag: fmt.Sprintf("0x8D%08X", s.etag), md5: sum, enc: encoding}
}

// Delete removes a blob.
func (s *Server) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.blobs, name)
}

// Fault sets what is asked before every request: it answers by itself and
// returns true, or returns false. n counts the ranged GETs from 1; 0 is a
// listing.
func (s *Server) Fault(f func(w http.ResponseWriter, r *http.Request, n int) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.gets = f, nil
}

// Gets is "name bytes=a-b" of every ranged GET since the last Fault.
func (s *Server) Gets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gets)
}

// Lists counts the listings.
func (s *Server) Lists() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// Fail answers as Azure does when it refuses.
func Fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("x-ms-error-code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/"+Account+"/"+Container)
	list := r.URL.Query().Get("comp") == "list"
	name := strings.TrimPrefix(rest, "/")
	rng := r.Header.Get("Range")
	if rng == "" {
		rng = r.Header.Get("x-ms-range")
	}
	s.mu.Lock()
	n := 0
	if list {
		s.lists++
	} else if r.Method == http.MethodGet {
		s.gets = append(s.gets, name+" "+rng)
		n = len(s.gets)
	}
	fault := s.fault
	s.mu.Unlock()
	w.Header().Set("x-ms-version", r.Header.Get("x-ms-version"))
	switch {
	case fault != nil && fault(w, r, n):
	case !ok:
		Fail(w, http.StatusNotFound, "ContainerNotFound")
	case !strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey "+Account+":") && !strings.Contains(r.URL.RawQuery, "sig="):
		Fail(w, http.StatusForbidden, "AuthenticationFailed")
	case list:
		s.list(w, r.URL.Query().Get("prefix"))
	default:
		s.get(w, r, name, rng)
	}
}

func (s *Server) list(w http.ResponseWriter, prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n := range s.blobs {
		if strings.HasPrefix(n, prefix) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>`)
	for _, n := range names {
		o := s.blobs[n]
		b.WriteString("<Blob><Name>")
		_ = xml.EscapeText(&b, []byte(n))
		fmt.Fprintf(&b, "</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>%s</Etag><Content-Length>%d</Content-Length><Content-MD5>%s</Content-MD5><BlobType>BlockBlob</BlobType></Properties></Blob>",
			o.etag, len(o.body), base64.StdEncoding.EncodeToString(o.md5))
	}
	b.WriteString(`</Blobs><NextMarker /></EnumerationResults>`)
	w.Header().Set("Content-Type", "application/xml")
	_, _ = w.Write(b.Bytes())
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, name, rng string) {
	s.mu.Lock()
	b, ok := s.blobs[name]
	s.mu.Unlock()
	if !ok {
		Fail(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	if m := r.Header.Get("If-Match"); m != "" && strings.Trim(m, `"`) != b.etag {
		Fail(w, http.StatusPreconditionFailed, "ConditionNotMet")
		return
	}
	w.Header().Set("ETag", `"`+b.etag+`"`)
	w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
	w.Header().Set("Content-Type", "application/octet-stream")
	if b.enc != "" {
		w.Header().Set("Content-Encoding", b.enc)
	}
	from, to, ok := Range(rng, len(b.body))
	if !ok {
		if b.md5 != nil {
			w.Header().Set("Content-MD5", base64.StdEncoding.EncodeToString(b.md5))
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(b.body)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(b.body)
		}
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(to-from))
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(b.body)))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = io.Copy(w, bytes.NewReader(b.body[from:to]))
}

// Range reads "bytes=a-b"; the result is [from, to).
func Range(h string, size int) (from, to int, ok bool) {
	a, b, ok := strings.Cut(strings.TrimPrefix(h, "bytes="), "-")
	if !ok {
		return 0, 0, false
	}
	from, err := strconv.Atoi(a)
	if err != nil || from >= size {
		return 0, 0, false
	}
	if to, err = strconv.Atoi(b); err != nil || to >= size {
		to = size - 1
	}
	return from, to + 1, true
}
