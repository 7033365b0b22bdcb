package web

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

type Options struct {
	// Getenv reads the environment (os.Getenv).
	Getenv func(string) string
	// Roots that certificates are checked against; the system's when nil.
	Roots *x509.CertPool
}

// Source reads folders of web servers. Its methods may be called concurrently.
type Source struct {
	trust *httpsource.HostTrust
	http  *http.Client
}

// New returns a source; nothing is dialled before it is used.
func New(o Options) *Source {
	t := httpsource.NewHostTrust(o.Getenv)
	return &Source{trust: t, http: httpsource.Client(httpsource.Options{Trust: t, Follow: true, Roots: o.Roots})}
}

func (s *Source) Close() { s.http.CloseIdleConnections() }

const (
	maxFiles   = 10_000
	maxFolders = 100
	maxDepth   = 4
	maxList    = 4 << 20
	// maxHeads is how many files are asked for their size at once.
	maxHeads = 16
	// maxWhole is the largest file read from a server without ranges: each range then
	// downloads all bytes before it.
	maxWhole = 64 << 20
)

// parse checks a location and returns it as a URL without a trailing slash.
func (s *Source) parse(location string) (*url.URL, error) {
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, &source.Error{Kind: source.BadSource, Detail: "the source is not the address of a folder",
			Fix: "https://HOST/FOLDER, without query and credentials"}
	}
	for part := range strings.SplitSeq(strings.Trim(u.Path, "/"), "/") {
		if part == "." || part == ".." {
			return nil, &source.Error{Kind: source.BadSource, Source: location, Detail: "holds . or .."}
		}
	}
	if err := s.trust.CheckURL(u); err != nil {
		return nil, source.WithSource(err, location)
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	return u, nil
}

func (s *Source) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	u, err := s.parse(location)
	if err != nil {
		return source.Plan{}, err
	}
	return source.PlanFolder(u.Path, func() (source.Plan, error) { return s.planFolder(ctx, location, u, also) }, func() (source.Plan, error) {
		return source.PlanFile(location, u.Path, func(key string) (source.File, error) {
			at := *u
			at.Path = key
			return s.head(ctx, location, &at, source.File{Name: path.Base(key)})
		})
	})
}

// planFolder finds the files of a folder by its list or its page.
func (s *Source) planFolder(ctx context.Context, location string, u *url.URL, also source.Globs) (source.Plan, error) {
	files, err := s.readSums(ctx, location, u)
	if err != nil {
		return source.Plan{}, err
	}
	if files == nil {
		if files, err = s.readIndex(ctx, location, u); err != nil {
			return source.Plan{}, err
		}
	}
	if len(files) == 0 {
		return source.Plan{}, source.Fail(source.NotFound, "its page lists no files",
			"let the server list the folder, or put a SHA256SUMS beside the files (sha256sum * > SHA256SUMS)").At(location, "")
	}
	return s.headAll(ctx, location, u, files, also)
}

// readSums reads SHA256SUMS; nil without an error if there is none.
func (s *Source) readSums(ctx context.Context, location string, u *url.URL) ([]source.File, error) {
	r, err := s.send(ctx, location, http.MethodGet, u.JoinPath("SHA256SUMS"), nil)
	if err != nil {
		return nil, err
	}
	defer httpsource.Drain(r)
	if r.StatusCode != http.StatusOK || strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
		if e := httpsource.Status(r, location, "SHA256SUMS"); e.Kind == source.Unavailable {
			return nil, e
		}
		return nil, nil
	}
	raw, err := httpsource.ReadBody(r, maxList, location)
	if err != nil {
		return nil, err
	}
	files, err := parseSums(string(raw))
	if err != nil {
		return nil, source.Fail(source.Corrupt, err.Error(), "write it with sha256sum * > SHA256SUMS").At(location, "SHA256SUMS")
	}
	return files, nil
}

// readIndex reads the pages of a folder and those below it.
func (s *Source) readIndex(ctx context.Context, location string, top *url.URL) ([]source.File, error) {
	var files []source.File
	seen := map[string]bool{"": true}
	todo := []string{""}
	for n := 0; n < len(todo); n++ {
		folder := todo[n]
		u := top.JoinPath(folder)
		u.Path += "/"
		r, err := s.send(ctx, location, http.MethodGet, u, nil)
		if err != nil {
			return nil, err
		}
		if r.StatusCode != http.StatusOK {
			e := httpsource.Status(r, location, folder)
			switch httpsource.Drain(r); {
			case e.Kind == source.NotFound:
				e.Fix = "the folder has neither a SHA256SUMS nor a page that lists its files"
			case r.StatusCode == http.StatusUnauthorized || r.StatusCode == http.StatusForbidden:
				e.Fix = noLogin + ", put a SHA256SUMS beside the files, " + orBucket
			}
			return nil, e
		}
		raw, err := httpsource.ReadBody(r, maxList, location)
		httpsource.Drain(r)
		if err != nil {
			return nil, err
		}
		names, err := parseIndex(r.Header.Get("Content-Type"), raw, r.Request.URL)
		if err != nil {
			return nil, source.Fail(source.Refused, "its page is no list of files: "+err.Error(),
				"let the server list the folder, or put a SHA256SUMS beside the files; a bucket is named s3://BUCKET/PREFIX").At(location, "")
		}
		if at := r.Request.URL; len(names) == 0 && at.Path != u.Path {
			return nil, source.Fail(source.NotFound, "the server led to "+functions.Clip(at.Host+at.Path)+", whose page lists no files",
				noLogin+", "+orBucket).At(location, "")
		}
		for _, name := range names {
			full := path.Join(folder, name)
			below := strings.HasSuffix(name, "/")
			switch {
			case seen[full]:
			case below && strings.Count(full, "/") < maxDepth && !strings.HasPrefix(path.Base(full), "."):
				seen[full] = true
				if todo = append(todo, full); len(todo) > maxFolders {
					return nil, source.Fail(source.Refused, fmt.Sprintf("has more than %d folders", maxFolders),
						"point source at the model's own folder").At(location, "")
				}
			case !below:
				seen[full] = true
				if files = append(files, source.File{Name: full}); len(files) > maxFiles {
					return nil, source.Fail(source.Refused, fmt.Sprintf("lists more than %d files", maxFiles),
						"point source at the model's own folder").At(location, "")
				}
			}
		}
	}
	return files, nil
}

// headAll asks for size and version of every file. Files that are not staged are not
// asked for; they stay in the plan, so that the loader can name them.
func (s *Source) headAll(ctx context.Context, location string, u *url.URL, files []source.File, also source.Globs) (source.Plan, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxHeads)
	for i := range files {
		if !also.Includes(files[i].Name) {
			continue
		}
		if err := source.CheckName(files[i].Name); err != nil && source.LeavesFolder(files[i].Name) {
			group.Go(func() error { return err })
			break
		} else if err != nil {
			continue // source.Select leaves it out, or refuses it
		}
		group.Go(func() (err error) {
			files[i], err = s.head(ctx, location, u.JoinPath(httpsource.EscapePath(files[i].Name)), files[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return source.Plan{}, err
	}
	return source.Plan{Files: files}, nil
}

func (s *Source) send(ctx context.Context, location, method string, u *url.URL, fields http.Header) (*http.Response, error) {
	return httpsource.Send(ctx, s.http, method, u.String(), location, "", func(req *http.Request) error {
		maps.Copy(req.Header, fields)
		req.Header.Set("Accept-Encoding", "identity")
		req.Header.Set("Accept", "application/json, text/html;q=0.9, */*;q=0.8")
		return nil
	})
}

const modifiedPrefix = "modified:"

// head adds size and version of a file, from the server's headers.
func (s *Source) head(ctx context.Context, location string, u *url.URL, f source.File) (source.File, error) {
	r, err := s.send(ctx, location, http.MethodHead, u, nil)
	if err != nil {
		return f, err
	}
	httpsource.Drain(r)
	size := r.ContentLength
	if refusesHead(r) {
		if r, size, err = s.firstByte(ctx, location, u); err != nil {
			return f, err
		}
	}
	known := r.StatusCode == http.StatusOK || r.StatusCode == http.StatusPartialContent
	if !known && (r.StatusCode != http.StatusRequestedRangeNotSatisfiable || size != 0) {
		e := fileError(r, location, f.Name)
		if e.Kind == source.NotFound && f.SHA256 != "" {
			e.Kind, e.Detail, e.Fix = source.Missing, "is in SHA256SUMS and not in the folder", "upload it, or take it off the list"
		}
		return f, e
	}
	if size < 0 {
		return f, &source.Error{Kind: source.Malformed, Source: location, File: f.Name, Detail: "the server does not send its length"}
	}
	f.Size, f.Ref = size, u.String()
	switch tag, modified := r.Header.Get("ETag"), r.Header.Get("Last-Modified"); {
	case strings.HasPrefix(tag, `"`):
		f.Version = tag
	case modified != "":
		// Two versions within one second are told apart by their size only.
		f.Version = fmt.Sprintf("%s%s %d", modifiedPrefix, modified, f.Size)
	case f.SHA256 != "":
		f.Version = "sha256:" + f.SHA256
	default:
		return f, source.Fail(source.Refused,
			"the server gives neither a strong ETag nor Last-Modified: a change while it is read would not be noticed",
			"put a SHA256SUMS beside the files (sha256sum * > SHA256SUMS)").At(location, f.Name)
	}
	return f, nil
}

const (
	noLogin  = "no login or key is sent to a web server: open the folder or its listing"
	orBucket = "or name it as az://, s3://, gs:// or hf://"
)

// fileError is the error of a file that the server does not give.
func fileError(r *http.Response, location, name string) *source.Error {
	e := httpsource.Status(r, location, name)
	if r.StatusCode == http.StatusUnauthorized || r.StatusCode == http.StatusForbidden {
		e.Fix = "files are read by ranges and without a login: let the server allow both, " + orBucket
	}
	return e
}

// refusesHead reports an answer after which the file is asked for by a range instead: the
// server has no HEAD (or a signature that is for GET alone), or did not give the length.
func refusesHead(r *http.Response) bool {
	refused := []int{http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented}
	return slices.Contains(refused, r.StatusCode) || r.StatusCode == http.StatusOK && r.ContentLength < 0
}

// firstByte asks for the first byte of a file, and returns the size of the whole file from
// the answer's head; below 0 it is not known.
func (s *Source) firstByte(ctx context.Context, location string, u *url.URL) (*http.Response, int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the body may be the whole file
	r, err := s.send(ctx, location, http.MethodGet, u, http.Header{"Range": {"bytes=0-0"}})
	if err != nil {
		return nil, 0, err
	}
	refusal, _ := httpsource.PeekRefusal(r) // its words; without them the status remains
	r.Body.Close()
	r.Body = io.NopCloser(bytes.NewReader(refusal))
	size := int64(-1)
	switch r.StatusCode {
	case http.StatusOK:
		size = r.ContentLength
	case http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable: // the second for an empty file
		_, total, _ := strings.Cut(r.Header.Get("Content-Range"), "/")
		if n, err := strconv.ParseInt(total, 10, 64); err == nil && n >= 0 {
			size = n
		}
	}
	return r, size, nil
}

// Read returns a range of a file in the version of the plan.
func (s *Source) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	u, err := url.Parse(f.Ref)
	if err != nil || u.Scheme != "https" {
		return nil, &source.Error{Kind: source.BadSource, File: f.Name, Detail: "is not a file of this source"}
	}
	location := strings.TrimSuffix(strings.TrimSuffix(f.Ref, httpsource.EscapePath(f.Name)), "/")
	a := httpsource.RangeRequest{URL: f.Ref, Source: location, File: f, Offset: offset, Length: length, MaxWhole: maxWhole,
		ResponseError: func(r *http.Response) error { return fileError(r, location, f.Name) }}
	if strings.HasPrefix(f.Version, `"`) {
		a.ETag = f.Version
	} else if modified, ok := strings.CutPrefix(f.Version, modifiedPrefix); ok {
		modified = modified[:max(0, strings.LastIndexByte(modified, ' '))]
		a.Header = http.Header{"If-Unmodified-Since": {modified}}
		a.SameVersion = func(h http.Header) bool { return h.Get("Last-Modified") == modified }
	}
	body, r, err := httpsource.Range(ctx, s.http, a)
	if e, ok := errors.AsType[*source.Error](err); ok && e.Kind == source.Changed {
		e.Fix = "let the upload finish, then try again; servers that share one name must give the same ETag for it"
	}
	if err != nil && r != nil && r.StatusCode == http.StatusOK && source.KindOf(err) == source.Malformed {
		err = source.Fail(source.Refused, "the server does not give ranges of it, and it is too large to be read whole",
			"serve it with ranges (Accept-Ranges: bytes)").At(location, f.Name)
		if r.ContentLength >= 0 && r.ContentLength != f.Size {
			err = &source.Error{Kind: source.Changed, Source: location, File: f.Name, Detail: "has another size than was listed"}
		}
	}
	return body, httpsource.GoneIsChanged(err)
}
