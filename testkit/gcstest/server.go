// Package gcstest is a Google Cloud Storage server for tests, in memory: it lists, stores and
// serves objects, each by its generation, checks a token, and injects faults.
package gcstest

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// Bucket of every server.
const Bucket = "weights-1"

// Server serves one bucket.
type Server struct {
	URL string

	mu      sync.Mutex // guards the fields below
	objects map[string]object
	count   int64
	token   string
	fault   func(w http.ResponseWriter, r *http.Request) bool
	page    int
}

type object struct {
	body       []byte
	generation string
	encoding   string
}

// New starts a server; the test ends it.
func New(t testing.TB) *Server {
	s := &Server{objects: make(map[string]object), count: 1_700_000_000_000_000, page: 3}
	s.URL = testkit.Serve(t, http.HandlerFunc(s.serve)).URL
	return s
}

// Getenv is the environment in which a source finds this server.
func (s *Server) Getenv(name string) string {
	if name == "STORAGE_EMULATOR_HOST" {
		return s.URL
	}
	return ""
}

// Put stores an object, as a new generation.
func (s *Server) Put(name string, body []byte, encoding string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.objects[name] = object{slices.Clone(body), fmt.Sprint(s.count), encoding}
}

// Delete removes an object.
func (s *Server) Delete(name string) { s.mu.Lock(); delete(s.objects, name); s.mu.Unlock() }

// Want says which token is let in; empty for all.
func (s *Server) Want(token string) { s.mu.Lock(); s.token = token; s.mu.Unlock() }

// Fault sets what is asked before every request.
func (s *Server) Fault(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	s.fault = f
	s.mu.Unlock()
}

// Fail answers as the API does when it refuses.
func Fail(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": status, "message": "the reason\nCANARY", "errors": []any{map[string]any{"reason": reason, "message": "CANARY"}},
	}})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fault, token := s.fault, s.token
	s.mu.Unlock()
	rest, ok := strings.CutPrefix(r.URL.Path, "/storage/v1/b/"+Bucket+"/o")
	switch {
	case fault != nil && fault(w, r):
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		Fail(w, http.StatusUnauthorized, "authError")
	case r.Method == http.MethodPost && r.URL.Path == "/upload/storage/v1/b/"+Bucket+"/o":
		s.upload(w, r)
	case !ok:
		Fail(w, http.StatusNotFound, "notFound")
	case rest == "":
		s.list(w, r)
	default:
		s.get(w, r, rest[1:])
	}
}

// upload stores a whole object, or nothing.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Query().Get("uploadType") != "media" || int64(len(body)) != r.ContentLength {
		Fail(w, http.StatusBadRequest, "invalid")
		return
	}
	s.Put(r.URL.Query().Get("name"), body, "")
	_, _ = io.WriteString(w, "{}")
}

func describe(name string, o object) map[string]string {
	sum := md5.Sum(o.body)
	crc := binary.BigEndian.AppendUint32(nil, crc32.Checksum(o.body, crc32.MakeTable(crc32.Castagnoli)))
	m := map[string]string{
		"name": name, "size": fmt.Sprint(len(o.body)), "generation": o.generation,
		"md5Hash": base64.StdEncoding.EncodeToString(sum[:]), "crc32c": base64.StdEncoding.EncodeToString(crc),
	}
	if o.encoding != "" {
		m["contentEncoding"] = o.encoding
	}
	return m
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n := range s.objects {
		if strings.HasPrefix(n, r.URL.Query().Get("prefix")) && n > r.URL.Query().Get("pageToken") {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	out := map[string]any{"kind": "storage#objects"}
	if len(names) > s.page {
		names = names[:s.page]
		out["nextPageToken"] = names[s.page-1]
	}
	var items []any
	for _, n := range names {
		items = append(items, describe(n, s.objects[n]))
	}
	if items != nil {
		out["items"] = items
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	o, ok := s.objects[name]
	s.mu.Unlock()
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/upload/storage/v1/b/"+Bucket+"/o":
		s.upload(w, r)
	case !ok:
		Fail(w, http.StatusNotFound, "notFound")
	case q.Get("ifGenerationMatch") != "" && q.Get("ifGenerationMatch") != o.generation:
		Fail(w, http.StatusPreconditionFailed, "conditionNotMet")
	case q.Get("alt") != "media":
		_ = json.NewEncoder(w).Encode(describe(name, o))
	default:
		w.Header().Set("X-Goog-Generation", o.generation)
		w.Header().Set("Content-Type", "application/octet-stream")
		if o.encoding != "" {
			w.Header().Set("Content-Encoding", o.encoding)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(o.body))
	}
}
