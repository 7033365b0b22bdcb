package gcs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/wire"
)

// Options of a source.
type Options struct {
	// Getenv reads the environment; os.Getenv when nil.
	Getenv func(string) string
	// Identity shows the machine's identity to an emulator too.
	Identity bool
}

// Source reads buckets. Its methods may be called concurrently.
type Source struct {
	endpoint string
	bad      error
	http     *http.Client
	tokens   *tokens
}

// New returns a source; nothing is read or dialled before it is used.
func New(o Options) *Source {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	s := &Source{endpoint: "https://storage.googleapis.com", http: wire.Client(wire.Options{})}
	emulator := o.Getenv("STORAGE_EMULATOR_HOST")
	if emulator != "" {
		s.endpoint = strings.TrimRight(emulator, "/")
		if !strings.Contains(s.endpoint, "://") {
			s.endpoint = "http://" + s.endpoint
		}
		if u, err := url.Parse(s.endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			s.bad = &source.Error{Kind: source.BadSource, What: "STORAGE_EMULATOR_HOST is not a host or an http URL", Fix: "such as http://127.0.0.1:4443"}
		}
	}
	s.tokens = newTokens(o.Getenv, emulator != "" && o.Getenv("GOOGLE_APPLICATION_CREDENTIALS") == "" && !o.Identity)
	return s
}

// Close closes idle connections.
func (s *Source) Close() { s.http.CloseIdleConnections(); s.tokens.close() }

// Refresh forgets the credentials, so that the next request looks for them.
func (s *Source) Refresh(ctx context.Context, location string) error {
	s.tokens.forget()
	return nil
}

// place is a location taken apart.
type place struct{ bucket, prefix string }

func (p place) String() string { return strings.TrimSuffix("gs://"+p.bucket+"/"+p.prefix, "/") }

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]+[a-z0-9]$`)

func parse(location string) (place, error) {
	bad := func(what string) (place, error) {
		return place{}, &source.Error{Kind: source.BadSource, Source: location, What: what, Fix: "gs://BUCKET/PREFIX"}
	}
	rest, ok := strings.CutPrefix(location, "gs://")
	if !ok {
		return bad("is not a folder of a bucket")
	}
	if strings.ContainsAny(rest, "?#@") {
		return place{}, &source.Error{Kind: source.BadSource, What: "the source holds a query, a fragment or a user name", Fix: "leave it out; credentials come from the environment"}
	}
	var p place
	p.bucket, p.prefix, _ = strings.Cut(rest, "/")
	p.prefix = strings.Trim(p.prefix, "/")
	if len(p.bucket) > 222 || !bucketName.MatchString(p.bucket) || strings.Contains(p.bucket, "..") {
		return bad(fmt.Sprintf("%.80q is not the name of a bucket", p.bucket))
	}
	if strings.ContainsFunc(p.prefix, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return bad("holds a backslash or a control character")
	}
	for part := range strings.SplitSeq(p.prefix, "/") {
		if part == "." || part == ".." || part == "" && p.prefix != "" {
			return bad("holds an empty part, . or ..")
		}
	}
	return p, nil
}

const (
	maxFiles  = 20_000
	maxPages  = 100
	maxAnswer = 16 << 20
)

// object is what the API says of one; numbers of 64 bits are strings there.
type object struct {
	Name            string `json:"name"`
	Size            string `json:"size"`
	Generation      string `json:"generation"`
	MD5             string `json:"md5Hash"`
	CRC32C          string `json:"crc32c"`
	ContentEncoding string `json:"contentEncoding"`
}

const fields = "name,size,generation,md5Hash,crc32c,contentEncoding"

func (s *Source) object(p place, key string) string {
	return s.endpoint + "/storage/v1/b/" + p.bucket + "/o/" + url.PathEscape(key)
}

// ask gets a document of the API.
func (s *Source) ask(ctx context.Context, p place, at string, query url.Values, into any) error {
	if s.bad != nil {
		return s.bad
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"?"+query.Encode(), nil)
	if err != nil {
		return &source.Error{Kind: source.BadSource, Source: p.String(), What: "cannot be asked for"}
	}
	if err := s.sign(req, p); err != nil {
		return err
	}
	r, err := s.http.Do(req)
	if err != nil {
		return wire.Network(ctx, p.String(), "", err)
	}
	defer wire.Drain(r)
	if r.StatusCode != http.StatusOK {
		return s.refused(r, p, "")
	}
	raw, err := wire.Small(r, maxAnswer, p.String())
	if err != nil {
		return err
	}
	if json.Unmarshal(raw, into) != nil {
		return malformed(p, "", "the answer is not what the API gives")
	}
	return nil
}

func (s *Source) sign(req *http.Request, p place) error {
	token, err := s.tokens.get(req.Context())
	if err != nil {
		if req.Context().Err() != nil {
			return context.Cause(req.Context())
		}
		return &source.Error{Kind: source.Denied, Source: p.String(), What: "no token can be had with " + s.tokens.how(), Fix: howTo}
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// Plan lists the objects below location; a location that ends in a file of
// weights is that one file.
func (s *Source) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := parse(location)
	if err != nil {
		return source.Plan{}, err
	}
	if source.Weights(p.prefix) {
		var o object
		if err := s.ask(ctx, p, s.object(p, p.prefix), url.Values{"fields": {fields}}, &o); err != nil {
			return source.Plan{}, err
		}
		f, err := file(p, path.Dir(p.prefix), o, also)
		return source.Plan{Files: []source.File{f}}, err
	}
	query := url.Values{"fields": {"nextPageToken,items(" + fields + ")"}, "maxResults": {"1000"}}
	if p.prefix != "" {
		query.Set("prefix", p.prefix+"/")
	}
	var plan source.Plan
	for page := 0; ; page++ {
		if page == maxPages {
			return source.Plan{}, malformed(p, "", "the listing has no end")
		}
		var list struct {
			Items []object `json:"items"`
			Next  string   `json:"nextPageToken"`
		}
		if err := s.ask(ctx, p, s.endpoint+"/storage/v1/b/"+p.bucket+"/o", query, &list); err != nil {
			return source.Plan{}, err
		}
		for _, o := range list.Items {
			if strings.HasSuffix(o.Name, "/") {
				continue // stands for a folder
			}
			f, err := file(p, p.prefix, o, also)
			if err != nil {
				return source.Plan{}, err
			}
			if plan.Files = append(plan.Files, f); len(plan.Files) > maxFiles {
				return source.Plan{}, &source.Error{Kind: source.Refused, Source: p.String(), What: fmt.Sprintf("holds more than %d objects", maxFiles), Fix: "point source at the model's own folder"}
			}
		}
		if list.Next == "" {
			break
		}
		query.Set("pageToken", list.Next)
	}
	if len(plan.Files) == 0 {
		return source.Plan{}, &source.Error{Kind: source.NotFound, Source: p.String(), What: fmt.Sprintf("bucket %s has nothing below %q", p.bucket, p.prefix), Fix: "check the prefix; names are case-sensitive"}
	}
	return plan, nil
}

func file(p place, folder string, o object, also source.Globs) (source.File, error) {
	name := o.Name
	if folder != "" && folder != "." {
		below := false
		if name, below = strings.CutPrefix(o.Name, folder+"/"); !below {
			return source.File{}, malformed(p, "", "the listing has an object that was not asked for")
		}
	}
	size, err := strconv.ParseInt(o.Size, 10, 64)
	if err != nil || size < 0 || o.Generation == "" || strings.Trim(o.Generation, "0123456789") != "" {
		return source.File{}, malformed(p, name, "the bucket gives no size or no generation for it")
	}
	f := source.File{Name: name, Size: size, Version: o.Generation, Ref: p.bucket + "|" + o.Name}
	if o.ContentEncoding != "" && o.ContentEncoding != "identity" && also.Wants(name) {
		return f, &source.Error{Kind: source.Corrupt, Source: p.String(), File: name, What: fmt.Sprintf("is stored with Content-Encoding %.20q", o.ContentEncoding), Fix: "upload it uncompressed"}
	}
	// One digest is enough; the MD5 is the dear one.
	if raw, err := base64.StdEncoding.DecodeString(o.CRC32C); err == nil && len(raw) == 4 {
		f.CRC32C = raw
	} else if raw, err := base64.StdEncoding.DecodeString(o.MD5); err == nil && len(raw) == 16 {
		f.MD5 = raw
	}
	return f, nil
}

// Read returns a range of an object in the generation of the plan.
func (s *Source) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	bucket, key, ok := strings.Cut(f.Ref, "|")
	if !ok || s.bad != nil {
		return nil, &source.Error{Kind: source.BadSource, File: f.Name, What: "is not a file of this source"}
	}
	p := place{bucket, strings.TrimSuffix(strings.TrimSuffix(key, f.Name), "/")}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.object(p, key)+"?alt=media&ifGenerationMatch="+f.Version, nil)
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, Source: p.String(), File: f.Name, What: "cannot be asked for"}
	}
	body, _, err := wire.Range(s.http, req, wire.Ask{Source: p.String(), File: f, Offset: offset, Length: length,
		Same:    func(h http.Header) bool { g := h.Get("X-Goog-Generation"); return g == "" || g == f.Version },
		Sign:    func(req *http.Request) error { return s.sign(req, p) },
		Refused: func(r *http.Response) error { return s.refused(r, p, f.Name) },
	})
	return body, wire.Listed(err)
}

// refused is the bucket's no. Its message is not kept.
func (s *Source) refused(r *http.Response, p place, name string) error {
	e := wire.Status(r, p.String(), name)
	var body struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if raw, err := io.ReadAll(io.LimitReader(r.Body, 64<<10)); err == nil {
		_ = json.Unmarshal(raw, &body)
	}
	e.What = fmt.Sprintf("bucket %s: %d", p.bucket, r.StatusCode)
	if len(body.Error.Errors) > 0 && len(body.Error.Errors[0].Reason) < 60 {
		e.What += fmt.Sprintf(" %q", body.Error.Errors[0].Reason)
	}
	switch r.StatusCode {
	case 401, 403:
		e.What += ", with " + s.tokens.how()
		e.Fix = "give it the role Storage Object Viewer on the bucket; " + howTo
	case 404:
		e.Fix = "check bucket and prefix; names are case-sensitive"
	case 412, 416:
		e.What += ": it was overwritten while it was read"
	case 304:
		e.Kind = source.Changed
	}
	return e
}

func malformed(p place, name, what string) error {
	return &source.Error{Kind: source.Malformed, Source: p.String(), File: name, What: what}
}
