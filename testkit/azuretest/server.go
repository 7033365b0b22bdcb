// Package azuretest is an Azure Blob Storage server for tests that checks signatures, lists blobs,
// serves ranges with checksums, and injects faults; it can start the Azurite emulator instead.
package azuretest

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"hash/crc64"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// Account, Container and Key of every server.
const (
	Account   = "faultaccount"
	Container = "weights"
	Key       = "c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA=="
)

// SAS is a signature that every server accepts in place of the key's.
const SAS = "sv=2024-11-04&sr=c&sp=rl&se=2099-01-01T00%3A00%3A00Z&sig=c2lnbm%2BF0dXJlK29mL3Ro%2FS9TQVM%3D"

// Server serves one container.
type Server struct {
	URL string
	Key string // of the account, in base64; set before the first request

	mu    sync.Mutex // guards the fields below
	blobs map[string]blob
	fault func(w http.ResponseWriter, r *http.Request, n int) bool
	gets  []string // "name range" of every ranged GET
	lists int
	sums  int // ranged GETs that asked for a checksum
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
	s.URL = testkit.Serve(t, s).URL
	return s
}

// Of returns a server without a listener, for url.
func Of(url string) *Server { return &Server{URL: url, Key: Key, blobs: make(map[string]blob)} }

// Getenv is the environment in which a source finds this server.
func (s *Server) Getenv(name string) string {
	if name == "AZURE_STORAGE_CONNECTION_STRING" {
		return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;BlobEndpoint=%s/%s;", Account, s.Key, s.URL, Account)
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
	s.fault, s.gets, s.sums = f, nil, 0
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

// Checksums counts the ranged GETs since the last Fault that asked for a checksum.
func (s *Server) Checksums() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sums
}

// Fail answers as Azure does when it refuses.
func Fail(w http.ResponseWriter, status int, code string) { Refuse(w, status, code, "no", "") }

// Refuse answers as Azure does when it refuses, with a message, and with a detail if it
// is not empty.
func Refuse(w http.ResponseWriter, status int, code, message, detail string) {
	w.Header().Set("x-ms-error-code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>%s</Code><Message>", code)
	_ = xml.EscapeText(w, []byte(message+"\nRequestId:5f2c\nTime:2026-01-01T00:00:00Z"))
	fmt.Fprint(w, "</Message>")
	if detail != "" {
		fmt.Fprint(w, "<AuthenticationErrorDetail>")
		_ = xml.EscapeText(w, []byte(detail))
		fmt.Fprint(w, "</AuthenticationErrorDetail>")
	}
	fmt.Fprint(w, "</Error>")
}

const (
	newestVersion  = "2026-06-06" // of the API, as of Azurite 3.37
	checksumHeader = "x-ms-range-get-content-crc64"
	maxChecksum    = 4 << 20 // bytes of a range with a checksum
)

// crc64Table is of the polynomial that Azure uses.
var crc64Table = crc64.MakeTable(0x9A6C9329AC4BC9B5)

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
		if r.Header.Get(checksumHeader) != "" {
			s.sums++
		}
	}
	fault := s.fault
	s.mu.Unlock()
	w.Header().Set("x-ms-version", r.Header.Get("x-ms-version"))
	switch {
	case fault != nil && fault(w, r, n):
	case !ok:
		Fail(w, http.StatusNotFound, "ContainerNotFound")
	case r.Header.Get("x-ms-version") > newestVersion:
		Refuse(w, http.StatusBadRequest, "InvalidHeaderValue",
			"The API version "+r.Header.Get("x-ms-version")+" is not supported. Please upgrade.", "")
	case !s.authorized(w, r):
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
		fmt.Fprintf(&b, "</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 "+
			"GMT</Last-Modified><Etag>%s</Etag><Content-Length>%d</Content-Length>"+
			"<Content-MD5>%s</Content-MD5><BlobType>BlockBlob</BlobType></Properties></Blob>",
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
	if r.Header.Get(checksumHeader) != "" {
		if to-from > maxChecksum {
			Refuse(w, http.StatusBadRequest, "InvalidHeaderValue", "The range is too long for a checksum.", "")
			return
		}
		sum := binary.LittleEndian.AppendUint64(nil, crc64.Checksum(b.body[from:to], crc64Table))
		w.Header().Set("x-ms-content-crc64", base64.StdEncoding.EncodeToString(sum))
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
