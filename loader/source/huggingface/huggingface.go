package huggingface

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/weightsets"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

type Options struct {
	// Getenv reads the environment (os.Getenv).
	Getenv func(string) string
	// Roots that certificates are checked against; the system's when nil.
	Roots *x509.CertPool
}

// Source reads repositories of a hub. Its methods may be called concurrently.
type Source struct {
	env         func(string) string
	endpoint    string // without a slash at its end
	configError error  // of HF_ENDPOINT
	http        *http.Client

	mu  sync.Mutex            // guards cdn
	cdn map[string]cdnAddress // by file
}

// cdnAddress is where a large file is, until it expires.
type cdnAddress struct {
	url   string
	until time.Time
}

// New returns a source; nothing is read or dialled before it is used.
func New(o Options) *Source {
	s := &Source{env: o.Getenv, endpoint: "https://huggingface.co", cdn: make(map[string]cdnAddress)}
	named := o.Getenv("HF_ENDPOINT")
	if named != "" {
		u, err := httpsource.ParseEndpoint("HF_ENDPOINT", named, "HF_TOKEN", "https://huggingface.co")
		if s.configError = err; err == nil {
			s.endpoint = u.String()
		}
	}
	s.http = httpsource.Client(httpsource.Options{Trust: httpsource.NewHostTrust(o.Getenv, named), Roots: o.Roots})
	return s
}

func (s *Source) Close() { s.http.CloseIdleConnections() }

const (
	maxFiles  = 20_000
	maxAnswer = 16 << 20
	maxPages  = 100
	// maxHops bounds the redirects from the hub to a file.
	maxHops = 5
	// addressLifetime bounds the use of a CDN address; they are signed for an hour.
	addressLifetime = 10 * time.Minute
)

// token returns the token for the hub; empty for public access.
func (s *Source) token() string {
	token, _ := s.findToken()
	return token
}

// findToken returns the token, and the variable or file that it is from.
func (s *Source) findToken() (token, place string) {
	for _, variable := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if t := strings.TrimSpace(s.env(variable)); t != "" {
			return t, variable
		}
	}
	below := func(variable string, path ...string) string {
		if dir := s.env(variable); dir != "" {
			return filepath.Join(append([]string{dir}, path...)...)
		}
		return ""
	}
	file := cmp.Or(s.env("HF_TOKEN_PATH"), below("HF_HOME", "token"), below("XDG_CACHE_HOME", "huggingface", "token"),
		below("HOME", ".cache", "huggingface", "token"))
	raw, err := os.ReadFile(file)
	if err != nil || len(raw) > 4096 {
		return "", ""
	}
	return strings.TrimSpace(string(raw)), "the file " + file
}

type treeEntry struct {
	Type string `json:"type"`
	OID  string `json:"oid"`
	Size int64  `json:"size"`
	Path string `json:"path"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// Plan resolves the revision to a commit and lists its files.
func (s *Source) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := parse(location)
	if err != nil {
		return source.Plan{}, err
	}
	if s.configError != nil {
		return source.Plan{}, s.configError
	}
	if v := strings.ToLower(s.env("HF_HUB_OFFLINE")); slices.Contains([]string{"1", "true", "yes", "on"}, v) {
		return source.Plan{}, source.Fail(source.Denied, "the hub is not asked, for HF_HUB_OFFLINE is set",
			"unset it, or name a folder with the files as the source").At(p.String(), "")
	}
	token, place := s.findToken()
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return source.Plan{}, source.Fail(source.BadSource,
			"the token of "+place+" holds a blank or a line end, or a character that is not ASCII", "a token is one word: hf_…")
	}
	api := s.endpoint + "/api/models/" + p.org + "/" + p.repo
	commit := p.rev
	if !isCommit(p.rev) {
		var info struct {
			SHA string `json:"sha"`
		}
		if _, err := s.getJSON(ctx, p, api+"/revision/"+url.PathEscape(p.rev), token, &info); err != nil {
			return source.Plan{}, err
		}
		if commit = info.SHA; !isCommit(commit) {
			return source.Plan{}, source.Fail(source.Malformed, "the hub names no commit for the revision", s.checkBetween()).At(p.String(), "")
		}
	}
	return source.PlanFolder(p.sub, func() (source.Plan, error) { return s.planTree(ctx, p, api, commit, token, p.sub, nil) },
		func() (source.Plan, error) {
			return s.planTree(ctx, p, api, commit, token, strings.TrimSuffix(path.Dir(p.sub), "."), weightsets.Siblings(p.sub))
		})
}

// planTree lists the files of a folder at a commit; of only, those of these paths, all of
// which must be there.
func (s *Source) planTree(ctx context.Context, p repoLocation, api, commit, token, folder string, only []string) (source.Plan, error) {
	next := api + "/tree/" + commit
	if folder != "" {
		next += "/" + httpsource.EscapePath(folder)
	}
	next += "?recursive=true"
	var plan source.Plan
	for page := 0; next != ""; page++ {
		if page == maxPages {
			return source.Plan{}, httpsource.Malformed(p, "", "the listing has no end")
		}
		var list []treeEntry
		more, err := s.getJSON(ctx, p, next, token, &list)
		if err != nil {
			return source.Plan{}, err
		}
		for _, e := range list {
			if e.Type != "file" || only != nil && !slices.Contains(only, e.Path) {
				continue
			}
			f, err := fileOf(p, commit, folder, e)
			if err != nil {
				return source.Plan{}, err
			}
			if plan.Files = append(plan.Files, f); len(plan.Files) > maxFiles {
				return source.Plan{}, source.Fail(source.Refused, fmt.Sprintf("holds more than %d files", maxFiles),
					"name a folder of it: hf://ORG/REPO/FOLDER").At(p.String(), "")
			}
		}
		next = more
	}
	if len(plan.Files) == 0 {
		return source.Plan{}, source.Fail(source.NotFound, "has no files at commit "+commit[:8],
			"check the name; they are case-sensitive").At(p.String(), "")
	}
	for _, name := range only {
		if !slices.ContainsFunc(plan.Files, func(f source.File) bool { return f.Name == path.Base(name) }) {
			return source.Plan{}, source.Fail(source.Missing, "is not there, and the names beside it count it",
				"copy it beside the others").At(p.String(), path.Base(name))
		}
	}
	return plan, nil
}

func fileOf(p repoLocation, commit, folder string, e treeEntry) (source.File, error) {
	name, below := e.Path, true
	if folder != "" {
		name, below = strings.CutPrefix(e.Path, folder+"/")
	}
	if !below || e.OID == "" {
		return source.File{}, httpsource.Malformed(p, "", "the listing has a file that was not asked for")
	}
	f := source.File{Name: name, Size: e.Size, Version: e.OID, Ref: strings.Join([]string{p.org, p.repo, commit, e.Path}, "|")}
	if e.LFS != nil {
		f.Size, f.SHA256, f.Version = e.LFS.Size, strings.TrimPrefix(strings.ToLower(e.LFS.OID), "sha256:"), e.LFS.OID
		if len(f.SHA256) != 64 || strings.Trim(f.SHA256, "0123456789abcdef") != "" {
			return source.File{}, httpsource.Malformed(p, name, "the hub gives no sha256 for it")
		}
	}
	return f, nil
}

// getJSON requests a document of the API; next is the address of the next page.
func (s *Source) getJSON(ctx context.Context, p repoLocation, at, token string, into any) (next string, err error) {
	r, err := s.getFollowing(ctx, p, "", at, token, nil)
	if err != nil {
		return "", err
	}
	defer httpsource.Drain(r)
	if r.StatusCode != http.StatusOK {
		return "", s.responseError(r, p, "", token)
	}
	if err := httpsource.Decode(r, maxAnswer, p.String(), json.Unmarshal, into, "the hub's answer is not what its API gives"); err != nil {
		if e, ok := errors.AsType[*source.Error](err); ok && e.Kind == source.Malformed {
			e.Fix = s.checkBetween()
		}
		return "", err
	}
	return s.nextPage(p, r.Header.Get("Link"))
}

var nextLink = regexp.MustCompile(`<([^>]+)>\s*;\s*rel="?next"?`)

// nextPage returns the address of the next page, which must be the hub's own: the
// token is sent there.
func (s *Source) nextPage(p repoLocation, header string) (string, error) {
	m := nextLink.FindStringSubmatch(header)
	if m == nil {
		return "", nil
	}
	base, err := url.Parse(s.endpoint + "/")
	if err != nil {
		return "", s.configError
	}
	u, err := base.Parse(m[1])
	if err != nil || !s.isHub(u) {
		return "", httpsource.Malformed(p, "", "the listing goes on at another host")
	}
	return u.String(), nil
}

func (s *Source) isHub(u *url.URL) bool {
	return u.User == nil && (u.Scheme+"://"+u.Host == s.endpoint || strings.HasPrefix(u.String(), s.endpoint+"/"))
}

// getFollowing sends a GET and follows redirects within the hub. An answer that leads
// elsewhere is returned as it is.
func (s *Source) getFollowing(ctx context.Context, p repoLocation, name, at, token string, header http.Header) (*http.Response, error) {
	for range maxHops {
		r, err := httpsource.Send(ctx, s.http, http.MethodGet, at, p.String(), name, func(req *http.Request) error {
			maps.Copy(req.Header, header)
			req.Header.Set("Accept-Encoding", "identity")
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if r.StatusCode/100 != 3 || r.StatusCode == http.StatusNotModified {
			return r, nil
		}
		to, err := r.Location()
		if err != nil {
			httpsource.Drain(r)
			return nil, httpsource.Malformed(p, name, "the hub redirects to nowhere")
		}
		if !s.isHub(to) {
			return r, nil
		}
		httpsource.Drain(r)
		at = to.String()
	}
	return nil, source.Fail(source.Refused, "the hub redirects too often", s.checkBetween()).At(p.String(), name)
}

// Read returns a range of a file of the commit that was planned.
func (s *Source) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	part := strings.SplitN(f.Ref, "|", 4)
	if len(part) != 4 {
		return nil, &source.Error{Kind: source.BadSource, File: f.Name, Detail: "is not a file of this source"}
	}
	p := repoLocation{org: part[0], repo: part[1], rev: part[2]}
	request := httpsource.RangeRequest{Source: p.String(), File: f, Offset: offset, Length: length, MaxWhole: 1 << 20,
		ResponseError: func(r *http.Response) error { // of the CDN
			e := httpsource.Status(r, p.String(), f.Name)
			e.Detail = r.Request.URL.Host + ", where the hub keeps it: " + e.Detail
			e.Fix = cmp.Or(e.Fix, "let that host through where a proxy or a firewall is between, and set this machine's clock")
			return e
		}}
	for try := 0; ; try++ {
		known := s.knownAddress(f.Ref)
		fresh := known == ""
		if fresh {
			body, to, err := s.resolve(ctx, p, f, part[3], request)
			if err != nil || body != nil {
				return body, err
			}
			known = to
		}
		request.URL = known
		body, r, err := httpsource.Range(ctx, s.http, request)
		if err == nil {
			if fresh {
				s.storeAddress(f.Ref, known)
			}
			return body, nil
		}
		if r == nil {
			s.dropAddress(f.Ref)
			return nil, err
		}
		switch r.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone, http.StatusBadRequest:
			// The signature has expired.
			s.dropAddress(f.Ref)
			if try == 0 {
				continue
			}
		}
		return nil, err
	}
}

// resolve asks the hub where a file is. The hub answers with the range itself, or with
// an address of the CDN.
func (s *Source) resolve(ctx context.Context, p repoLocation, f source.File, full string, request httpsource.RangeRequest) (io.ReadCloser,
	string, error) {
	at := fmt.Sprintf("%s/%s/%s/resolve/%s/%s", s.endpoint, p.org, p.repo, p.rev, httpsource.EscapePath(full))
	token := s.token()
	r, err := s.getFollowing(ctx, p, f.Name, at, token,
		http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", request.Offset, request.Offset+request.Length-1)}})
	if err != nil {
		return nil, "", err
	}
	if c := r.Header.Get("X-Repo-Commit"); c != "" && c != p.rev {
		httpsource.Drain(r)
		return nil, "", &source.Error{Kind: source.Changed, Source: p.String(), File: f.Name,
			Detail: "the hub returned another commit than requested"}
	}
	if size := r.Header.Get("X-Linked-Size"); size != "" && size != strconv.FormatInt(f.Size, 10) {
		httpsource.Drain(r)
		return nil, "", httpsource.Malformed(p, f.Name, "the hub gives another size than its listing")
	}
	if r.StatusCode/100 != 3 {
		if r.StatusCode/100 != 2 {
			defer httpsource.Drain(r)
			err := s.responseError(r, p, f.Name, token)
			if e := err.(*source.Error); e.Kind == source.NotFound { // a commit does not change
				e.Kind, e.Detail, e.Fix = source.Changed, fmt.Sprintf("is on the hub's list, and its file answers %d", r.StatusCode), s.checkBetween()
			}
			return nil, "", err
		}
		body, err := httpsource.ResponseBody(r, request)
		return body, "", err
	}
	to, err := r.Location()
	httpsource.Drain(r)
	if err != nil || to.User != nil || to.Scheme != "https" && !strings.HasPrefix(s.endpoint, "http://") {
		return nil, "", httpsource.Malformed(p, f.Name, "the hub redirects to something that is not https")
	}
	return nil, to.String(), nil
}

func (s *Source) storeAddress(ref, at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cdn) > maxFiles {
		clear(s.cdn)
	}
	s.cdn[ref] = cdnAddress{at, time.Now().Add(addressLifetime)}
}

func (s *Source) knownAddress(ref string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.cdn[ref]; time.Now().Before(a.until) {
		return a.url
	}
	return ""
}

func (s *Source) dropAddress(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cdn, ref)
}

// Refresh drops the signed addresses; the token is read again at every use.
func (s *Source) Refresh(ctx context.Context, location string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.cdn)
	return nil
}

// responseError returns the hub's refusal, with its reason where that helps.
func (s *Source) responseError(r *http.Response, p repoLocation, name, token string) error {
	e, words := httpsource.Status(r, p.String(), name), httpsource.Words(r)
	login, place := httpsource.Misnamed(s.env, "HF_TOKEN", "HUGGINGFACE_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN",
		"HF_API_TOKEN", "HUGGING_FACE_TOKEN")+"set HF_TOKEN to a token that may read it", ""
	if token != "" {
		_, place = s.findToken()
		login = "check that the token of " + cmp.Or(place, "HF_TOKEN") + " may read it"
	}
	if file := s.env("HF_TOKEN_PATH"); token == "" && file != "" {
		login = fmt.Sprintf("HF_TOKEN_PATH names %q, which gives no token; ", functions.Clip(file)) + login
	}
	code := r.Header.Get("X-Error-Code")
	switch {
	case code == "GatedRepo":
		e.Kind, e.Detail = source.Denied, "the repository is gated"
		e.Fix = fmt.Sprintf("accept its conditions at %s/%s/%s, then %s", s.endpoint, p.org, p.repo, login)
	case code == "DisabledRepo":
		e.Kind, e.Detail, e.Fix = source.Denied, "the hub has disabled the repository", "its page on the hub has the reason; take another one"
	case r.StatusCode == 403 && words != "": // such as a right that the token lacks
		e.Fix = "if the repository is private or gated, " + login + "; else " + s.checkBetween()
	case r.StatusCode == 403 && code == "" && !isJSON(r):
		e.Detail, e.Fix = "answered 403 and no reason of the hub's", s.checkBetween()+"; if the repository is private "+login
	case r.StatusCode == 429 && token == "":
		e.Fix = "the hub answers more requests with a token: set HF_TOKEN"
	case code == "RevisionNotFound":
		e.Kind, e.Detail, e.Fix = source.NotFound, fmt.Sprintf("the repository has no revision %.80q", p.rev),
			"hf://ORG/REPO@REV: a branch, a tag or all 40 digits of a commit; a slash in its name is written %2F"
	case code == "EntryNotFound":
		e.Kind, e.Detail, e.Fix = source.NotFound, "there is no such file or folder in the repository", "names are case-sensitive"
	case r.StatusCode == 401 && code == "" && place != "": // also for public repositories
		e.Detail = "the hub refuses the token of " + place + ": it answered 401"
		e.Fix = "set HF_TOKEN to a valid token, or take this one away if the repository is public"
	case code == "RepoNotFound" || r.StatusCode == 404:
		e.Kind, e.Detail = source.NotFound, "there is no such repository, or it is private"
		e.Fix = "check the name; if it is private " + login
		if named := s.env("HF_ENDPOINT"); named != "" {
			e.Fix += "; HF_ENDPOINT names " + functions.Clip(s.endpoint)
		}
	case r.StatusCode == 401 || r.StatusCode == 403:
		e.Detail, e.Fix = fmt.Sprintf("the hub says %d: there is no such repository, or it is private", r.StatusCode),
			"check the name; if it is private "+login
	case r.StatusCode/100 == 3 && e.Fix != "" && s.env("HF_ENDPOINT") != "":
		e.Fix = "set HF_ENDPOINT to that server, if it is meant"
	case e.Fix == "" && e.Kind == source.Refused:
		e.Fix = s.checkBetween()
	}
	// Without a token the hub says "Invalid username or password" of what it does not have. A 404
	// without a code is of another server.
	if words != "" && (e.Kind != source.NotFound || code == "") && (r.StatusCode != 401 || token != "") && !strings.Contains(e.Detail, words) {
		e.Detail += ": " + words
	}
	return e
}

// checkBetween is the way out where an answer is none of the hub's.
func (s *Source) checkBetween() string {
	if named := s.env("HF_ENDPOINT"); named != "" {
		return "check HF_ENDPOINT, which names " + functions.Clip(s.endpoint) + ", and what is between this machine and it"
	}
	return "check what is between this machine and the hub, or set HF_ENDPOINT to a mirror"
}

// isJSON reports whether an answer is in JSON, as the hub's own are.
func isJSON(r *http.Response) bool { return strings.Contains(r.Header.Get("Content-Type"), "json") }
