// Package huggingfacetest is a Hugging Face hub for tests: it serves commits and files of
// repositories, large files from a CDN with signed addresses, injects faults, and records requests
// that leak the token to the CDN.
package huggingfacetest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// Token opens the private repository.
const Token = "hf_CANARYtokenOfTests"

// Server is one hub with one repository, and its CDN.
type Server struct {
	URL, CDN string

	mu      sync.Mutex // guards the fields below
	heads   map[string]string
	commits map[string]map[string][]byte
	count   int
	private bool
	over    int // signatures below this number have expired
	signed  int
	leaks   []string
	fault   func(w http.ResponseWriter, r *http.Request) bool
	page    int
}

// Org and Repo of every server. Files of at least Large bytes are in git-lfs.
const (
	Org   = "org"
	Repo  = "tiny-model"
	Large = 1000
)

// New starts a hub; the test ends it.
func New(t testing.TB) *Server {
	s := &Server{heads: make(map[string]string), commits: make(map[string]map[string][]byte), page: 3}
	s.URL = testkit.Serve(t, http.HandlerFunc(s.hub)).URL
	s.CDN = testkit.Serve(t, http.HandlerFunc(s.cdn)).URL
	return s
}

// Getenv is the environment in which a source finds this hub.
func (s *Server) Getenv(name string) string {
	switch name {
	case "HF_ENDPOINT":
		return s.URL
	case "THAW_SOURCE_HOSTS":
		return strings.TrimPrefix(s.CDN, "http://")
	case "HF_TOKEN":
		return Token
	}
	return ""
}

// Commit puts files (nil removes one) on a branch and returns the commit.
func (s *Server) Commit(branch string, files map[string][]byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	tree := maps.Clone(s.commits[s.heads[branch]])
	if tree == nil {
		tree = make(map[string][]byte)
	}
	for name, body := range files {
		if body == nil {
			delete(tree, name)
		} else {
			tree[name] = body
		}
	}
	s.count++
	sum := sha1.Sum(fmt.Append(nil, "commit ", s.count))
	id := hex.EncodeToString(sum[:])
	s.commits[id], s.heads[branch] = tree, id
	return id
}

// Private says that the repository needs the token.
func (s *Server) Private() { s.mu.Lock(); s.private = true; s.mu.Unlock() }

// Expire ends all signatures given so far.
func (s *Server) Expire() { s.mu.Lock(); s.over = s.signed + 1; s.mu.Unlock() }

// Fault sets what is asked before every request of the hub.
func (s *Server) Fault(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	s.fault = f
	s.mu.Unlock()
}

// Leaks are the requests to the CDN that carried the token.
func (s *Server) Leaks() []string { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.leaks) }

// Signed counts the signatures given.
func (s *Server) Signed() int { s.mu.Lock(); defer s.mu.Unlock(); return s.signed }

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", "no")
	w.WriteHeader(status)
}

func (s *Server) hub(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.private && r.Header.Get("Authorization") != "Bearer "+Token {
		fail(w, http.StatusUnauthorized, "GatedRepo")
		return
	}
	id := Org + "/" + Repo
	if rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api/models/"+id+"/"); ok {
		kind, rest, _ := strings.Cut(rest, "/")
		rev, sub, _ := strings.Cut(rest, "/")
		rev, _ = url.PathUnescape(rev)
		sub, _ = url.PathUnescape(sub)
		commit := rev
		if h := s.heads[rev]; h != "" {
			commit = h
		}
		tree, ok := s.commits[commit]
		switch {
		case !ok:
			fail(w, http.StatusNotFound, "RevisionNotFound")
		case kind == "revision":
			_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "sha": commit, "private": s.private, "siblings": []any{}})
		case kind == "tree":
			s.tree(w, r, tree, sub)
		default:
			http.NotFound(w, r)
		}
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/"+id+"/resolve/"); ok {
		commit, name, _ := strings.Cut(rest, "/")
		body, ok := s.commits[commit][name]
		switch {
		case s.commits[commit] == nil:
			fail(w, http.StatusNotFound, "RevisionNotFound")
			return
		case !ok:
			fail(w, http.StatusNotFound, "EntryNotFound")
			return
		}
		w.Header().Set("X-Repo-Commit", commit)
		if len(body) < Large {
			w.Header().Set("ETag", `"`+oid(body)+`"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
			return
		}
		s.signed++
		w.Header().Set("X-Linked-Size", fmt.Sprint(len(body)))
		w.Header().Set("X-Linked-ETag", `"`+sha(body)+`"`)
		w.Header().Set("Location", fmt.Sprintf("%s/%s/%s?n=%d&Signature=CANARYsignature", s.CDN, commit, url.PathEscape(name), s.signed))
		w.WriteHeader(http.StatusFound)
		return
	}
	fail(w, http.StatusNotFound, "RepoNotFound")
}

func (s *Server) tree(w http.ResponseWriter, r *http.Request, tree map[string][]byte, sub string) {
	var list []map[string]any
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		if sub != "" && !strings.HasPrefix(name, sub+"/") {
			continue
		}
		body := tree[name]
		e := map[string]any{"type": "file", "path": name, "size": len(body), "oid": oid(body)}
		if len(body) >= Large {
			e["lfs"] = map[string]any{"oid": sha(body), "size": len(body), "pointerSize": 134}
		}
		list = append(list, e)
	}
	if len(list) == 0 && sub != "" {
		fail(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	from := 0
	_, _ = fmt.Sscan(r.URL.Query().Get("cursor"), &from)
	list = list[min(from, len(list)):]
	if len(list) > s.page {
		list = list[:s.page]
		q := r.URL.Query()
		q.Set("cursor", fmt.Sprint(from+s.page))
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?%s>; rel="next"`, s.URL, r.URL.EscapedPath(), q.Encode()))
	}
	if list == nil {
		list = []map[string]any{}
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (s *Server) cdn(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if r.Header.Get("Authorization") != "" {
		s.leaks = append(s.leaks, r.URL.Path)
	}
	commit, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	body, ok := s.commits[commit][name]
	n := 0
	_, _ = fmt.Sscan(r.URL.Query().Get("n"), &n)
	done := n < s.over || r.URL.Query().Get("Signature") == ""
	s.mu.Unlock()
	switch {
	case done:
		w.WriteHeader(http.StatusForbidden)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("ETag", `"`+sha(body)+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	}
}

func oid(body []byte) string {
	sum := sha1.Sum(append(fmt.Append(nil, "blob ", len(body), "\x00"), body...))
	return hex.EncodeToString(sum[:])
}

func sha(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
