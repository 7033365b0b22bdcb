package azure

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

type Options struct {
	// Getenv reads the environment (os.Getenv). azidentity reads the process's
	// by itself.
	Getenv func(string) string
	// Roots that certificates are checked against; the system's when nil.
	Roots *x509.CertPool
	// Endpoint replaces the hosts of all accounts, if not empty: a private endpoint,
	// or a test server.
	Endpoint string
}

// Source reads blob folders. Its methods may be called concurrently.
type Source struct {
	o    Options
	http *http.Client

	mu      sync.Mutex // guards the fields below
	cred    azcore.TokenCredential
	clients map[string]*containerAccess // by container URL's parts
	// endpoints outlives clients: what a service supports does not change with a token.
	endpoints map[string]*endpointSupport // by URL
}

// New returns a source; nothing is read or dialled before it is used.
func New(o Options) *Source {
	// Any address is dialled: hosts are Azure's or the operator's own. A redirect
	// is not followed: accounts send none, and it would leak the signature.
	return &Source{o: o, clients: make(map[string]*containerAccess), endpoints: make(map[string]*endpointSupport),
		http: httpsource.Client(httpsource.Options{Roots: o.Roots})}
}

func (s *Source) Close() { s.http.CloseIdleConnections() }

// Refresh drops identities and tokens, so that the next request looks for them again,
// including the file of a federated token.
func (s *Source) Refresh(ctx context.Context, location string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cred = nil
	clear(s.clients)
	return nil
}

// maxBlobs bounds a listing that is not of a model.
const maxBlobs = 20_000

func (s *Source) accessTo(p blobLocation) (*containerAccess, error) {
	key := p.endpoint + "|" + p.account + "|" + p.container
	s.mu.Lock()
	a := s.clients[key]
	s.mu.Unlock()
	if a != nil {
		return a, nil
	}
	a, err := s.newAccess(p)
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
func (s *Source) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := parse(location)
	if err != nil {
		return source.Plan{}, err
	}
	a, err := s.accessTo(p)
	if err != nil {
		return source.Plan{}, err
	}
	return source.PlanFolder(p.prefix, func() (source.Plan, error) { return s.planFolder(ctx, p, a) }, func() (source.Plan, error) {
		return source.PlanFile(p.String(), p.prefix, func(key string) (source.File, error) { return s.planBlob(ctx, p, a, key) })
	})
}

func (s *Source) planFolder(ctx context.Context, p blobLocation, a *containerAccess) (source.Plan, error) {
	below := p.prefix
	if below != "" {
		below += "/"
	}
	pages := a.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Prefix: &below,
		Include: container.ListBlobsInclude{Metadata: true}})
	var plan source.Plan
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return source.Plan{}, sdkError(ctx, p, a, "", err)
		}
		if page.Segment == nil {
			return source.Plan{}, httpsource.Malformed(p, "", "the listing has no list of blobs")
		}
		for _, b := range page.Segment.BlobItems {
			f, ok, err := fileOf(p, below, b)
			if err != nil {
				return source.Plan{}, err
			}
			if !ok {
				continue
			}
			if plan.Files = append(plan.Files, f); len(plan.Files) > maxBlobs {
				return source.Plan{}, source.Fail(source.Refused, fmt.Sprintf("holds more than %d blobs", maxBlobs),
					"point source at the model's own folder").At(p.String(), "")
			}
		}
	}
	if len(plan.Files) == 0 {
		return source.Plan{}, &source.Error{Kind: source.NotFound, Source: p.String(),
			Detail: fmt.Sprintf("container %s of account %s has nothing below %q", p.container, p.account, below),
			Fix:    "check the prefix; names are case-sensitive"}
	}
	return plan, nil
}

// fileOf converts one item of a listing; ok is false for the marker of a folder.
func fileOf(p blobLocation, below string, b *container.BlobItem) (f source.File, ok bool, err error) {
	if b == nil || b.Name == nil || b.Properties == nil || b.Properties.ContentLength == nil || b.Properties.ETag == nil {
		return f, false, httpsource.Malformed(p, "", "the listing has a blob without name, size or ETag")
	}
	name, inside := strings.CutPrefix(*b.Name, below)
	if !inside {
		return f, false, httpsource.Malformed(p, "", "the listing has a blob that was not asked for")
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
	f = source.File{Name: name, Size: *b.Properties.ContentLength, Version: httpsource.QuoteETag(string(*b.Properties.ETag)),
		Ref: refOf(p, *b.Name)}
	if len(b.Properties.ContentMD5) == 16 {
		f.MD5 = b.Properties.ContentMD5
	}
	return f, true, nil
}

// planBlob returns one blob, but for its name.
func (s *Source) planBlob(ctx context.Context, p blobLocation, a *containerAccess, key string) (source.File, error) {
	r, err := a.client.NewBlobClient(key).GetProperties(ctx, nil)
	if err != nil {
		return source.File{}, sdkError(ctx, p, a, "", err)
	}
	if r.ContentLength == nil || r.ETag == nil {
		return source.File{}, httpsource.Malformed(p, "", "the blob has no size or no ETag")
	}
	f := source.File{Size: *r.ContentLength, Version: httpsource.QuoteETag(string(*r.ETag)), Ref: refOf(p, key)}
	if len(r.ContentMD5) == 16 {
		f.MD5 = r.ContentMD5
	}
	return f, nil
}

// refOf returns endpoint|account|container|blob; only the last may contain a bar.
func refOf(p blobLocation, name string) string {
	return strings.Join([]string{p.endpoint, p.account, p.container, name}, "|")
}

func (s *Source) locateBlob(f source.File) (p blobLocation, name string, a *containerAccess, err error) {
	part := strings.SplitN(f.Ref, "|", 4)
	if len(part) != 4 {
		return p, "", nil, &source.Error{Kind: source.BadSource, File: f.Name, Detail: "is not a file of this source"}
	}
	p = blobLocation{endpoint: part[0], account: part[1], container: part[2],
		prefix: strings.TrimSuffix(strings.TrimSuffix(part[3], f.Name), "/")}
	a, err = s.accessTo(p)
	return p, part[3], a, err
}

func (l blobLocation) describe() string {
	return fmt.Sprintf("account %s, container %s, prefix %q", l.account, l.container, l.prefix)
}

// uploadBlock and uploads bound the memory of one Write.
const (
	uploadBlock = 8 << 20
	uploads     = 2
)

// Write stores body as the blob name below location, replacing it. The blob appears
// when its last byte has arrived. Only compile caches of engines are written.
func (s *Source) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	p, err := parse(location)
	if err != nil {
		return err
	}
	a, err := s.accessTo(p)
	if err != nil {
		return err
	}
	blob := name
	if p.prefix != "" {
		blob = p.prefix + "/" + name
	}
	_, err = a.client.NewBlockBlobClient(blob).UploadStream(ctx, httpsource.Exactly(body, size),
		&blockblob.UploadStreamOptions{BlockSize: uploadBlock, Concurrency: uploads})
	if errors.Is(err, httpsource.ErrShort) {
		return &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "is shorter than announced"}
	}
	if err != nil {
		return sdkError(ctx, p, a, name, err)
	}
	return nil
}
