package httpsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

// Bucket is a folder of a bucket, as s3:// and gs:// name one.
type Bucket struct{ Scheme, Name, Prefix string }

func (b Bucket) String() string {
	return strings.TrimSuffix(b.Scheme+"://"+b.Name+"/"+b.Prefix, "/")
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]+[a-z0-9]$`)

// ParseBucket parses a location; longest bounds the bucket's name.
func ParseBucket(scheme, location string, longest int) (Bucket, error) {
	bad := func(problem string) (Bucket, error) {
		return Bucket{}, &source.Error{Kind: source.BadSource, Source: location, Detail: problem, Fix: scheme + "://BUCKET/PREFIX"}
	}
	rest, ok := strings.CutPrefix(location, scheme+"://")
	if !ok {
		return bad("is not a folder of a bucket")
	}
	if strings.ContainsAny(rest, "?#@") {
		return Bucket{}, source.Fail(source.BadSource, "the source holds a query, a fragment or a user name",
			"leave it out; credentials come from the environment")
	}
	b := Bucket{Scheme: scheme}
	b.Name, b.Prefix, _ = strings.Cut(rest, "/")
	b.Prefix = strings.Trim(b.Prefix, "/")
	if strings.Contains(b.Name, ":") {
		return Bucket{}, source.Fail(source.BadSource, fmt.Sprintf("%.80q is an ARN, or names a tenant", b.Name), "name the bucket alone, a "+
			"tenant's with the keys of that tenant, or the alias of an access point: "+scheme+"://ALIAS/PREFIX").At(location, "")
	}
	if len(b.Name) > longest || !bucketName.MatchString(b.Name) || strings.Contains(b.Name, "..") {
		return bad(fmt.Sprintf("%.80q is not the name of a bucket", b.Name))
	}
	if strings.ContainsFunc(b.Prefix, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return bad("holds a backslash or a control character")
	}
	for part := range strings.SplitSeq(b.Prefix, "/") {
		if part == "." || part == ".." || part == "" && b.Prefix != "" {
			return bad("holds an empty part, . or ..")
		}
	}
	return b, nil
}

// Key returns the key of a name below the prefix.
func (b Bucket) Key(name string) string {
	if b.Prefix == "" {
		return name
	}
	return b.Prefix + "/" + name
}

// Ref returns a file's Ref: bucket and key.
func (b Bucket) Ref(key string) string { return b.Name + "|" + key }

func ParseRef(scheme string, f source.File) (b Bucket, key string, err error) {
	name, key, ok := strings.Cut(f.Ref, "|")
	if !ok {
		return b, "", &source.Error{Kind: source.BadSource, File: f.Name, Detail: "is not a file of this source"}
	}
	return Bucket{scheme, name, strings.TrimSuffix(strings.TrimSuffix(key, f.Name), "/")}, key, nil
}

// Malformed is the error of an answer that is not what was asked for; name is the file's, or "".
func Malformed(location fmt.Stringer, name, problem string) error {
	return &source.Error{Kind: source.Malformed, Source: location.String(), File: name, Detail: problem}
}

// Bounds of a listing that is not of a model.
const (
	listFiles = 20_000
	listPages = 100
)

// List collects the pages of a listing below the prefix. page returns the files of one
// page, whose Name is their whole key, and where the listing continues; "" at its end.
func (b Bucket) List(page func(from string) (files []source.File, next string, err error)) (source.Plan, error) {
	var plan source.Plan
	for n, from := 0, ""; ; n++ {
		files, next, err := page(from)
		if err != nil {
			return source.Plan{}, err
		}
		if next != "" && (next == from || n+1 == listPages) {
			return source.Plan{}, Malformed(b, "", "the listing has no end")
		}
		for _, f := range files {
			key := f.Name
			name, below := strings.CutPrefix(key, b.Key(""))
			if !below {
				return source.Plan{}, Malformed(b, "", "the listing has an object that was not asked for")
			}
			if name == "" || strings.HasSuffix(name, "/") {
				continue // the marker of a folder
			}
			f.Name, f.Ref = name, b.Ref(key)
			if plan.Files = append(plan.Files, f); len(plan.Files) > listFiles {
				return source.Plan{}, source.Fail(source.Refused, fmt.Sprintf("holds more than %d objects", listFiles),
					"point source at the model's own folder").At(b.String(), "")
			}
		}
		if from = next; from == "" {
			break
		}
	}
	if len(plan.Files) == 0 {
		return source.Plan{}, source.Fail(source.NotFound, fmt.Sprintf("bucket %s has nothing below %q", b.Name, b.Prefix),
			"check the prefix; names are case-sensitive").At(b.String(), "")
	}
	return plan, nil
}

// NewUpload returns a request that stores the first size bytes of body as the object name. It
// fails if there are fewer, so that no partial object is stored.
func (b Bucket) NewUpload(ctx context.Context, method, url, name string, body io.Reader, size int64) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, io.NopCloser(Exactly(body, size)))
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, Source: b.String(), File: name, Detail: "is not a valid address"}
	}
	if req.ContentLength = size; size == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	return req, nil
}

func (b Bucket) Upload(client *http.Client, req *http.Request, name string) (*http.Response, error) {
	r, err := client.Do(req)
	if errors.Is(err, ErrShort) {
		return nil, &source.Error{Kind: source.Broken, Source: b.String(), File: name, Detail: "is shorter than announced"}
	}
	if err != nil {
		return nil, Network(req.Context(), b.String(), name, err)
	}
	return r, nil
}

// ErrShort is the error of a body with fewer bytes than were announced. A connection that ends
// early has another.
var ErrShort = errors.New("the body is shorter than announced")

// Exactly returns the first size bytes of r, and ErrShort if there are fewer, so that no
// partial object is stored.
func Exactly(r io.Reader, size int64) io.Reader { return &exactly{r, size} }

type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(b []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(b[:min(int64(len(b)), e.left)])
	if e.left -= int64(n); err == io.EOF && e.left > 0 {
		err = ErrShort
	}
	return n, err
}
