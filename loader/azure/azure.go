package azure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/thaw-dev/thaw/loader/source"
)

// Options of a source.
type Options struct {
	// Getenv reads the environment; os.Getenv when nil.
	Getenv func(string) string
}

// Source reads blob folders. Its methods may be called concurrently.
type Source struct {
	o         Options
	transport *http.Transport
	http      *http.Client

	mu      sync.Mutex // guards the fields below
	cred    azcore.TokenCredential
	clients map[string]*access // by container URL's parts
}

// New returns a source; nothing is read or dialled before it is used.
func New(o Options) *Source {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: 10 * time.Second,
		IdleConnTimeout:       60 * time.Second,
		MaxIdleConnsPerHost:   64,
		MaxConnsPerHost:       64,
		ReadBufferSize:        256 << 10,
		// The bytes at rest are what was promised; and ranges of something
		// compressed on the way would not fit together.
		DisableCompression: true,
	}
	return &Source{o: o, transport: t, clients: make(map[string]*access), http: &http.Client{
		Transport: t,
		// An account does not redirect; whoever does wants the signature.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (s *Source) Close() { s.transport.CloseIdleConnections() }

// maxBlobs bounds a listing that is not of a model.
const maxBlobs = 20_000

func (s *Source) access(p place) (*access, error) {
	key := p.endpoint + "|" + p.account + "|" + p.container
	s.mu.Lock()
	a := s.clients[key]
	s.mu.Unlock()
	if a != nil {
		return a, nil
	}
	a, err := s.dial(p)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[key] = a
	return a, nil
}

// Plan lists the blobs below location; a location that ends in a file of
// weights is that one file.
func (s *Source) Plan(ctx context.Context, location string) (source.Plan, error) {
	p, err := parse(location)
	if err != nil {
		return source.Plan{}, err
	}
	a, err := s.access(p)
	if err != nil {
		return source.Plan{}, err
	}
	if source.Weights(p.prefix) {
		return s.single(ctx, p, a)
	}
	below := p.prefix
	if below != "" {
		below += "/"
	}
	pages := a.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Prefix: &below, Include: container.ListBlobsInclude{Metadata: true}})
	var plan source.Plan
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return source.Plan{}, fail(ctx, p, a, "", err)
		}
		if page.Segment == nil {
			return source.Plan{}, malformed(p, "", "the listing has no list of blobs")
		}
		for _, b := range page.Segment.BlobItems {
			f, ok, err := file(p, below, b)
			if err != nil {
				return source.Plan{}, err
			}
			if !ok {
				continue
			}
			if plan.Files = append(plan.Files, f); len(plan.Files) > maxBlobs {
				return source.Plan{}, &source.Error{Kind: source.Refused, Source: p.String(), What: fmt.Sprintf("holds more than %d blobs", maxBlobs), Fix: "point source at the model's own folder"}
			}
		}
	}
	if len(plan.Files) == 0 {
		return source.Plan{}, &source.Error{Kind: source.NotFound, Source: p.String(),
			What: fmt.Sprintf("container %s of account %s has nothing below %q", p.container, p.account, below), Fix: "check the prefix; names are case-sensitive"}
	}
	return plan, nil
}

// file is one item of a listing; ok is false for what stands for a folder.
func file(p place, below string, b *container.BlobItem) (f source.File, ok bool, err error) {
	if b == nil || b.Name == nil || b.Properties == nil || b.Properties.ContentLength == nil || b.Properties.ETag == nil {
		return f, false, malformed(p, "", "the listing has a blob without name, size or ETag")
	}
	name, inside := strings.CutPrefix(*b.Name, below)
	if !inside {
		return f, false, malformed(p, "", "the listing has a blob that was not asked for")
	}
	// Accounts with a hierarchical namespace list folders as empty blobs.
	for k, v := range b.Metadata {
		if strings.EqualFold(k, "hdi_isfolder") && v != nil && *v == "true" {
			return f, false, nil
		}
	}
	if r := b.Properties.ResourceType; r != nil && *r == "directory" || name == "" || strings.HasSuffix(name, "/") {
		return f, false, nil
	}
	f = source.File{Name: name, Size: *b.Properties.ContentLength, Version: tag(string(*b.Properties.ETag)), Ref: ref(p, *b.Name)}
	if len(b.Properties.ContentMD5) == 16 {
		f.MD5 = b.Properties.ContentMD5
	}
	return f, true, nil
}

// single plans one blob.
func (s *Source) single(ctx context.Context, p place, a *access) (source.Plan, error) {
	r, err := a.client.NewBlobClient(p.prefix).GetProperties(ctx, nil)
	if err != nil {
		return source.Plan{}, fail(ctx, p, a, "", err)
	}
	if r.ContentLength == nil || r.ETag == nil {
		return source.Plan{}, malformed(p, "", "the blob has no size or no ETag")
	}
	f := source.File{Name: path.Base(p.prefix), Size: *r.ContentLength, Version: tag(string(*r.ETag)), Ref: ref(p, p.prefix)}
	if len(r.ContentMD5) == 16 {
		f.MD5 = r.ContentMD5
	}
	return source.Plan{Files: []source.File{f}}, nil
}

// ref is endpoint|account|container|blob; none of these holds a bar but the
// last.
func ref(p place, blob string) string {
	return strings.Join([]string{p.endpoint, p.account, p.container, blob}, "|")
}

// tag puts an ETag in quotes: listings leave them out, headers want them.
func tag(e string) string { return `"` + strings.Trim(e, `"`) + `"` }

// Read returns a range of a blob in the version of the plan.
func (s *Source) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	part := strings.SplitN(f.Ref, "|", 4)
	if len(part) != 4 {
		return nil, &source.Error{Kind: source.BadSource, File: f.Name, What: "is not a file of this source"}
	}
	p := place{endpoint: part[0], account: part[1], container: part[2], prefix: strings.TrimSuffix(strings.TrimSuffix(part[3], f.Name), "/")}
	a, err := s.access(p)
	if err != nil {
		return nil, err
	}
	etag := azcore.ETag(f.Version)
	r, err := a.client.NewBlobClient(part[3]).DownloadStream(ctx, &blob.DownloadStreamOptions{
		Range:            blob.HTTPRange{Offset: offset, Count: length},
		AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &etag}},
	})
	if err != nil {
		err = fail(ctx, p, a, f.Name, err)
		if source.KindOf(err) == source.NotFound {
			// It was listed a moment ago.
			err = &source.Error{Kind: source.Changed, Source: p.String(), File: f.Name, What: "is gone since it was listed"}
		}
		return nil, err
	}
	if err := right(p, f, offset, length, &r); err != nil {
		r.Body.Close()
		return nil, err
	}
	return r.Body, nil
}

// right reports what of an answer is not what was asked for.
func right(p place, f source.File, offset, length int64, r *blob.DownloadStreamResponse) error {
	if r.ContentEncoding != nil && *r.ContentEncoding != "" && *r.ContentEncoding != "identity" {
		return &source.Error{Kind: source.Corrupt, Source: p.String(), File: f.Name, What: fmt.Sprintf("is stored with Content-Encoding %.20q", *r.ContentEncoding), Fix: "upload it uncompressed"}
	}
	if r.ContentRange == nil {
		return malformed(p, f.Name, "a range was asked for and the whole file came")
	}
	if want := fmt.Sprintf("bytes %d-%d/%d", offset, offset+length-1, f.Size); *r.ContentRange != want {
		return malformed(p, f.Name, fmt.Sprintf("the answer is %.60q where %q was asked for", *r.ContentRange, want))
	}
	if r.ContentLength == nil || *r.ContentLength != length {
		return malformed(p, f.Name, fmt.Sprintf("the answer has not the %d bytes asked for", length))
	}
	if r.ETag == nil || tag(string(*r.ETag)) != f.Version {
		return &source.Error{Kind: source.Changed, Source: p.String(), File: f.Name, What: "was overwritten while it was read"}
	}
	return nil
}

func malformed(p place, name, what string) error {
	return &source.Error{Kind: source.Malformed, Source: p.String(), File: name, What: what}
}

// fail turns an error of the SDK into one that says which account, container
// and prefix, what came, and what to do. Nothing of the original text is kept
// but status and code: it holds URLs, and those may hold signatures.
func fail(ctx context.Context, p place, a *access, name string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	where := fmt.Sprintf("account %s, container %s, prefix %q", p.account, p.container, p.prefix)
	e := &source.Error{Source: p.String(), File: name}
	r, ok := errors.AsType[*azcore.ResponseError](err)
	switch {
	case noIdentity(err):
		e.Kind, e.What, e.Fix = source.Denied, "no identity of this machine gives a token for "+where, howTo
		return e
	case !ok:
		e.Kind, e.What = source.Unavailable, where+" cannot be reached: "+network(err)
		e.Fix = "check the account's name and this machine's network"
		return e
	}
	what := fmt.Sprintf("%s: %d", where, r.StatusCode)
	if r.ErrorCode != "" && len(r.ErrorCode) < 60 {
		what += " " + strconv.QuoteToASCII(r.ErrorCode)
	}
	e.What = what
	switch code := r.StatusCode; {
	case code == 401 || code == 403:
		e.Kind, e.Fix = source.Denied, a.fix
		e.What += ", with " + a.how
	case code == 404 && r.ErrorCode == "ContainerNotFound":
		e.Kind, e.Fix = source.NotFound, "there is no such container; check its name and the account's"
	case code == 404:
		e.Kind, e.Fix = source.NotFound, "check container and prefix; names are case-sensitive"
	case code == 412 || code == 416:
		e.Kind = source.Changed
		e.What += ": it was overwritten while it was read"
	case code == 409 && r.ErrorCode == "BlobArchived":
		e.Kind, e.Fix = source.Refused, "the blob is in the archive tier: move it to hot or cool first"
	case code == 408 || code == 429 || code >= 500:
		e.Kind, e.RetryAfter = source.Unavailable, retryAfter(r.RawResponse, time.Now())
	default:
		e.Kind = source.Refused
	}
	return e
}

// network says in a few words why there was no answer, by the error's type:
// its text may hold the URL.
func network(err error) string {
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		return "DNS knows no " + d.Name
	}
	if o, ok := errors.AsType[*net.OpError](err); ok && o.Err != nil {
		return o.Op + ": " + o.Err.Error()
	}
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return "no answer in time"
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection was closed"
	}
	return "the connection failed"
}

// retryAfter is what the answer asks for, in any of the spellings Azure uses.
func retryAfter(r *http.Response, now time.Time) time.Duration {
	if r == nil {
		return 0
	}
	for _, h := range []string{"x-ms-retry-after-ms", "retry-after-ms"} {
		if n, err := strconv.Atoi(r.Header.Get(h)); err == nil && n > 0 {
			return time.Duration(n) * time.Millisecond
		}
	}
	v := r.Header.Get("Retry-After")
	if n, err := strconv.Atoi(v); err == nil && n > 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil && t.After(now) {
		return t.Sub(now)
	}
	return 0
}
