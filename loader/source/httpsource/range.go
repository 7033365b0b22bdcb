package httpsource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
)

// RangeRequest is one ranged GET: its context for errors, and what the answer must be.
type RangeRequest struct {
	URL    string
	Header http.Header // beside those of the range; may be nil
	Source string      // for errors
	File   source.File
	Offset int64
	Length int64
	// ETag is pinned with If-Match and compared; empty if the version is pinned in
	// another way.
	ETag string
	// MaxWhole is the largest file that may come whole in answer to a range; the rest
	// is discarded. 0: none.
	MaxWhole int64
	// SameVersion, if set, reports whether an answer is of the planned version, for
	// servers without a usable ETag.
	SameVersion func(h http.Header) bool
	// Sign, if set, completes the request after its headers are set.
	Sign func(req *http.Request) error
	// ResponseError makes the error of an answer other than 206; Status if nil.
	ResponseError func(r *http.Response) error
}

func (r *RangeRequest) failure(kind source.Kind, detail string) error {
	return &source.Error{Kind: kind, Source: r.Source, File: r.File.Name, Detail: detail}
}

// Range sends a request for a range, and returns the body if the answer is the requested
// one.
func Range(ctx context.Context, c *http.Client, a RangeRequest) (io.ReadCloser, *http.Response, error) {
	r, err := Send(ctx, c, http.MethodGet, a.URL, a.Source, a.File.Name, func(req *http.Request) error {
		maps.Copy(req.Header, a.Header)
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", a.Offset, a.Offset+a.Length-1))
		req.Header.Set("Accept-Encoding", "identity")
		if a.ETag != "" {
			req.Header.Set("If-Match", a.ETag)
		}
		if a.Sign != nil {
			return a.Sign(req)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	body, err := ResponseBody(r, a)
	return body, r, err
}

// Send sends a request without a body, once complete, which may be nil, has added its headers.
// location and file are for errors.
func Send(ctx context.Context, c *http.Client, method, url, location, file string, complete func(*http.Request) error) (*http.Response,
	error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, Source: location, File: file, Detail: "is not a valid address"}
	}
	if complete != nil {
		if err := complete(req); err != nil {
			return nil, err
		}
	}
	r, err := c.Do(req)
	if err != nil {
		return nil, Network(ctx, location, file, err)
	}
	return r, nil
}

// ResponseBody returns the body of an answer if it is the requested one; otherwise it
// closes it.
func ResponseBody(r *http.Response, a RangeRequest) (io.ReadCloser, error) {
	whole := a.File.Size <= a.MaxWhole || a.Offset == 0 && a.Length == a.File.Size
	if r.StatusCode == http.StatusOK && r.ContentLength == a.File.Size && whole {
		return cutRange(r, a)
	}
	var err error
	if r.StatusCode == http.StatusPartialContent || r.StatusCode == http.StatusOK {
		if err = checkRange(r, a); err == nil && r.ContentLength < 0 { // a proxy has it in chunks
			return limitBody(r, a.Length), nil
		} else if err == nil {
			return r.Body, nil
		}
	} else if a.ResponseError != nil {
		err = a.ResponseError(r)
	} else {
		err = Status(r, a.Source, a.File.Name)
	}
	Drain(r)
	return nil, err
}

// cutRange cuts the range out of a whole file.
func cutRange(r *http.Response, a RangeRequest) (io.ReadCloser, error) {
	fail := func(err error) (io.ReadCloser, error) {
		r.Body.Close()
		return nil, err
	}
	if err := checkVersion(r, a); err != nil {
		return fail(err)
	}
	if _, err := io.CopyN(io.Discard, r.Body, a.Offset); err != nil {
		if ctx := r.Request.Context(); ctx.Err() != nil {
			return fail(context.Cause(ctx))
		}
		return fail(a.failure(source.Unavailable, "the connection broke before the range began"))
	}
	return limitBody(r, a.Length), nil
}

// limitBody is the first n bytes of an answer's body.
func limitBody(r *http.Response, n int64) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(r.Body, n), r.Body}
}

// checkVersion returns an error for an answer with other bytes than the planned ones.
func checkVersion(r *http.Response, a RangeRequest) error {
	if err := CheckEncoding(a.Source, a.File.Name, strings.Join(r.Header.Values("Content-Encoding"), ",")); err != nil {
		return err
	}
	tag := r.Header.Get("ETag")
	if same, weak := strings.CutPrefix(tag, "W/"); weak && a.ETag != "" && QuoteETag(same) == a.ETag {
		return source.Fail(source.Changed, "came with a weak ETag (W/), as a proxy marks what it may change",
			"have what is between pass this host through, without compressing it").At(a.Source, a.File.Name)
	}
	if a.ETag != "" && tag != "" && QuoteETag(tag) != a.ETag || a.SameVersion != nil && !a.SameVersion(r.Header) {
		return a.failure(source.Changed, "was overwritten while it was read")
	}
	return nil
}

func checkRange(r *http.Response, a RangeRequest) error {
	if err := checkVersion(r, a); err != nil {
		return err
	}
	got := r.Header.Get("Content-Range")
	if r.StatusCode != http.StatusPartialContent || got == "" {
		if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == "text/html" {
			return a.failure(source.Malformed, "a page (text/html) came in place of the file, such as a login or what a proxy blocks with")
		}
		return a.failure(source.Malformed, "a range was asked for and the whole file came")
	}
	wantRange := fmt.Sprintf("bytes %d-%d/", a.Offset, a.Offset+a.Length-1)
	if want := wantRange + strconv.FormatInt(a.File.Size, 10); got != want {
		if a.ETag == "" && strings.HasPrefix(got, wantRange) {
			return a.failure(source.Changed, "has another size than was listed")
		}
		return a.failure(source.Malformed, fmt.Sprintf("the answer is %.60q where %q was asked for", got, want))
	}
	if r.ContentLength >= 0 && r.ContentLength != a.Length {
		return a.failure(source.Malformed, fmt.Sprintf("the answer has not the %d bytes asked for", a.Length))
	}
	if a.ETag != "" && r.Header.Get("ETag") == "" {
		return a.failure(source.Malformed, "the answer does not say of which version it is")
	}
	return nil
}

func ReadFull(ctx context.Context, body io.Reader, b []byte, a RangeRequest) error {
	n, err := io.ReadFull(body, b)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return a.failure(source.Malformed, fmt.Sprintf("the range at byte %d ended after %d of %d bytes", a.Offset, n, len(b)))
	}
	return a.failure(source.Unavailable, fmt.Sprintf("the connection broke after %d of %d bytes", n, len(b)))
}

// Status converts a status into an error, for servers without error codes of their
// own.
func Status(r *http.Response, location, file string) *source.Error {
	e := &source.Error{Kind: source.Refused, Source: location, File: file, Detail: fmt.Sprintf("the server answered %d", r.StatusCode)}
	if words := Words(r); words != "" {
		e.Detail += ": " + words
	}
	switch code := r.StatusCode; {
	case code == 401 || code == 403:
		e.Kind = source.Denied
	case code == 407:
		e.Kind, e.Fix = source.Denied, ProxyLogin(r.Header)
	case code == 404 || code == 410:
		e.Kind = source.NotFound
	case code == 412 || code == 416:
		e.Kind = source.Changed
		e.Detail += ": it was overwritten while it was read"
	case code == 408 || code == 425 || code == 429 || code >= 500:
		e.Kind, e.RetryAfter, e.Busy = source.Unavailable, RetryAfter(r.Header, time.Now()), code == 429 || code == 503
	case code/100 == 3:
		to := Redirect(r)
		if e.Detail += cmp.Or(to, notFollowed); to != "" {
			e.Fix = "name that server in place of this one, if it is meant"
		}
	}
	return e
}

const notFollowed = ": a redirect that is not followed"

// Redirect describes whereto an answer redirects; "" for one that names no server.
func Redirect(r *http.Response) string {
	if to, err := r.Location(); r.StatusCode/100 == 3 && err == nil {
		return notFollowed + ", to " + functions.Clip(to.Scheme+"://"+to.Host)
	}
	return ""
}

// GoneIsChanged turns "not found" about a listed file into a change.
func GoneIsChanged(err error) error {
	if e, ok := errors.AsType[*source.Error](err); ok && e.Kind == source.NotFound {
		e.Kind, e.Detail, e.Fix = source.Changed, "is gone since it was listed", ""
	}
	return err
}

// Network is the error of a request without an answer. The cause of an ended context
// is returned as it is.
func Network(ctx context.Context, location, file string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*source.Error](err); ok {
		return source.Fail(e.Kind, e.Detail, e.Fix).At(location, file)
	}
	if r, ok := errors.AsType[refusedAddr](err); ok {
		return source.Fail(source.Refused, fmt.Sprintf("the host is at %s, which is not a public address", r.addr),
			"if it is meant, name the host in "+HostsVariable).At(location, file)
	}
	e := NoAnswer(err)
	e.Source, e.File, e.Detail = location, file, "cannot be reached: "+e.Detail
	return e
}

// RetryAfter returns the pause that an answer asks for, in any of the spellings in
// use.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	for _, name := range []string{"x-ms-retry-after-ms", "retry-after-ms"} {
		if n, err := strconv.Atoi(h.Get(name)); err == nil && n > 0 {
			return time.Duration(n) * time.Millisecond
		}
	}
	v := h.Get("Retry-After")
	if n, err := strconv.Atoi(v); err == nil && n > 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil && t.After(now) {
		return t.Sub(now)
	}
	return 0
}

// QuoteETag puts an ETag in quotes: listings leave them out, headers need them.
func QuoteETag(e string) string {
	if strings.HasPrefix(e, "W/") {
		return e
	}
	return `"` + strings.Trim(e, `"`) + `"`
}

// EscapePath escapes the parts of a path; [url.URL.JoinPath] would clean and unescape it.
func EscapePath(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

// Drain reads the rest of a small answer, so that its connection is reused, and closes
// it.
func Drain(r *http.Response) {
	_, _ = io.CopyN(io.Discard, r.Body, 8<<10)
	r.Body.Close()
}

// ReadBody reads an answer of at most limit bytes; a longer one is an error of kind
// Malformed.
func ReadBody(r *http.Response, limit int64, location string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil && r.Request.Context().Err() != nil:
		return nil, context.Cause(r.Request.Context())
	case err != nil:
		return nil, &source.Error{Kind: source.Unavailable, Source: location, Detail: "the answer broke off"}
	case int64(len(b)) > limit:
		return nil, &source.Error{Kind: source.Malformed, Source: location, Detail: fmt.Sprintf("the answer is longer than %d bytes", limit)}
	}
	return b, nil
}

// Decode reads an answer of at most limit bytes into a value. unmarshal is that of its format,
// and problem describes an answer which it refuses.
func Decode(r *http.Response, limit int64, location string, unmarshal func([]byte, any) error, into any, problem string) error {
	raw, err := ReadBody(r, limit, location)
	if err != nil {
		return err
	}
	if unmarshal(raw, into) != nil {
		if title := describePage(raw, r.Request); title != "" {
			problem += ": it is " + title
		}
		return &source.Error{Kind: source.Malformed, Source: location, Detail: problem}
	}
	return nil
}

// CheckEncoding returns an error for a file whose Content-Encoding, a list separated by
// commas, holds a compression. Everything else that uploads leave there (aws-chunked,
// binary, utf-8) does not change the bytes; sizes and digests decide about those.
func CheckEncoding(location, file, encodings string) error {
	for encoding := range strings.SplitSeq(encodings, ",") {
		switch strings.ToLower(strings.TrimSpace(encoding)) {
		case "gzip", "x-gzip", "compress", "x-compress", "deflate", "br", "zstd", "dcb", "dcz",
			"bzip2", "x-bzip2", "xz", "lzma", "lz4", "snappy":
			return &source.Error{Kind: source.Corrupt, Source: location, File: file,
				Detail: fmt.Sprintf("is stored with Content-Encoding %.20q", strings.TrimSpace(encoding)), Fix: "upload it uncompressed"}
		}
	}
	return nil
}
