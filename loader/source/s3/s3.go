package s3

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"
	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

type Options struct {
	// Getenv reads the environment (os.Getenv). The library reads profiles and
	// roles from the process by itself.
	Getenv func(string) string
}

// Source reads buckets. Its methods may be called concurrently.
type Source struct {
	http        *http.Client
	keys        *keys
	endpoint    *url.URL // nil for Amazon's
	host        string   // of Amazon's, before the region
	virtual     bool
	region      string
	configError error // of the configuration
	// otherEndpoint names a variable of another tool, where no endpoint is set.
	otherEndpoint string

	mu      sync.Mutex        // guards the fields below
	regions map[string]string // by bucket, as answers named them
}

// New returns a source. It reads the region and the endpoint of the profile in AWS_PROFILE;
// nothing is dialled before the source is used.
func New(o Options) *Source {
	s := &Source{http: httpsource.Client(httpsource.Options{}), keys: newKeys(o.Getenv), regions: make(map[string]string)}
	profile := readProfile(o.Getenv)
	s.region = cmp.Or(o.Getenv("AWS_REGION"), o.Getenv("AWS_DEFAULT_REGION"), profile.region, "us-east-1")
	if s.host = "s3"; isTrue(cmp.Or(o.Getenv("AWS_USE_FIPS_ENDPOINT"), profile.fips)) {
		s.host += "-fips"
	}
	if isTrue(cmp.Or(o.Getenv("AWS_USE_DUALSTACK_ENDPOINT"), profile.dualstack)) {
		s.host += ".dualstack"
	}
	s.virtual = o.Getenv("THAW_S3_STYLE") == "virtual"
	raw := cmp.Or(o.Getenv("AWS_ENDPOINT_URL_S3"), o.Getenv("AWS_ENDPOINT_URL"), profile.endpoint)
	if raw != "" && !isTrue(o.Getenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")) {
		s.endpoint, s.configError = httpsource.ParseEndpoint("AWS_ENDPOINT_URL or the profile's endpoint_url", raw,
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "https://minio.example.org:9000; for Amazon's own S3 leave it out")
	} else if s.otherEndpoint = httpsource.Misnamed(o.Getenv, "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL", "S3_ENDPOINT", "AWS_S3_ENDPOINT",
		"AWS_ENDPOINT", "MINIO_ENDPOINT"); !hostPart.MatchString(s.region) {
		s.configError = &source.Error{Kind: source.BadSource, Detail: "AWS_REGION or the profile's region is not the name of a region",
			Fix: "such as eu-central-1"}
	}
	return s
}

func (s *Source) Close() { s.http.CloseIdleConnections(); s.keys.close() }

// Refresh forgets the credentials, so that the next request looks for them.
func (s *Source) Refresh(ctx context.Context, location string) error {
	s.keys.expire()
	return nil
}

type bucketLocation = httpsource.Bucket

var hostPart = regexp.MustCompile(`^[a-z0-9-]+$`)

func parse(location string) (bucketLocation, error) {
	return httpsource.ParseBucket("s3", location, 63)
}

// address returns the URL of a key, or of the bucket if key is empty.
func (s *Source) address(p bucketLocation, key, region string) *url.URL {
	u := &url.URL{Scheme: "https"}
	virtual := s.virtual
	if s.endpoint != nil {
		u.Scheme, u.Host, u.Path = s.endpoint.Scheme, s.endpoint.Host, s.endpoint.Path
	} else {
		u.Host = s.host + "." + region + ".amazonaws.com"
		if strings.HasPrefix(region, "cn-") {
			u.Host += ".cn"
		}
		// A certificate covers one label, so a bucket with a dot goes into the
		// path.
		virtual = !strings.Contains(p.Name, ".")
	}
	if virtual {
		u.Host = p.Name + "." + u.Host
	} else {
		u.Path += "/" + p.Name
	}
	u.Path += "/" + key
	// Signed and sent in the same spelling.
	u.RawPath = s3utils.EncodePath(u.Path)
	return u
}

func (s *Source) regionOf(bucket string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.regions[bucket]; r != "" {
		return r
	}
	return s.region
}

// noteRegion stores the bucket's region from a refusal; false if it is the one used.
func (s *Source) noteRegion(bucket, used string, r *http.Response) bool {
	var body struct{ Region string }
	if raw, err := httpsource.PeekRefusal(r); err == nil {
		_ = xml.Unmarshal(raw, &body) // without it the header remains
	}
	region := cmp.Or(r.Header.Get("X-Amz-Bucket-Region"), body.Region)
	if r.StatusCode < 300 || r.StatusCode >= 500 || !hostPart.MatchString(region) || region == used {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.regions[bucket] = region
	return true
}

func (s *Source) sign(req *http.Request, p bucketLocation, region string) error {
	v, err := s.keys.get(req.Context())
	if err != nil {
		if req.Context().Err() != nil {
			return context.Cause(req.Context())
		}
		return &source.Error{Kind: source.Denied, Source: p.String(), Detail: "no credentials were found", Fix: howTo}
	}
	if v.AccessKeyID == "" {
		return nil
	}
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	signer.SignV4(*req, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, region)
	return nil
}

func (s *Source) do(ctx context.Context, p bucketLocation, method, key string, query url.Values, header http.Header) (*http.Response,
	error) {
	prepare := func(region string) (*http.Request, error) {
		u := s.address(p, key, region)
		u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
		if err != nil {
			return nil, &source.Error{Kind: source.BadSource, Source: p.String(), Detail: "is not a valid address"}
		}
		maps.Copy(req.Header, header)
		return req, nil
	}
	return s.send(p, prepare, func(req *http.Request) (*http.Response, error) {
		r, err := s.http.Do(req)
		if err != nil {
			return nil, s.nameEndpoint(httpsource.Network(ctx, p.String(), "", err))
		}
		return r, nil
	})
}

// nameEndpoint names the variable that a host which does not answer is from.
func (s *Source) nameEndpoint(err error) error {
	if e, ok := errors.AsType[*source.Error](err); ok && e.Fix == httpsource.CheckNetwork {
		if e.Fix = "check AWS_ENDPOINT_URL and this machine's network"; s.endpoint == nil {
			e.Fix = fmt.Sprintf("%scheck AWS_REGION (%s) and this machine's network", s.otherEndpoint, s.region)
		}
	}
	return err
}

// send signs and sends the request that prepare makes for a region, once more if the bucket
// is in another one.
func (s *Source) send(p bucketLocation, prepare func(region string) (*http.Request, error),
	send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	if s.configError != nil {
		return nil, s.configError
	}
	for try := 0; ; try++ {
		region := s.regionOf(p.Name)
		req, err := prepare(region)
		if err == nil {
			err = s.sign(req, p, region)
		}
		if err != nil {
			return nil, err
		}
		r, err := send(req)
		if err != nil {
			return nil, err
		}
		if try == 0 && s.noteRegion(p.Name, region, r) {
			httpsource.Drain(r)
			continue
		}
		return r, nil
	}
}

const (
	maxAnswer = 16 << 20
	// heads is how many files are asked for their digests at once, maxHeads how
	// many at all.
	heads, maxHeads = 16, 500
)

type listing struct {
	XMLName  xml.Name `xml:"ListBucketResult"` // a page of a proxy is no empty bucket
	Contents []struct {
		Key          string `xml:"Key"`
		ETag         string `xml:"ETag"`
		Size         int64  `xml:"Size"`
		StorageClass string `xml:"StorageClass"`
	} `xml:"Contents"`
	EncodingType string `xml:"EncodingType"`
	Truncated    bool   `xml:"IsTruncated"`
	Next         string `xml:"NextContinuationToken"`
}

// Plan lists the objects below location; a location that ends in a file of
// weights is that one file.
func (s *Source) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := parse(location)
	if err != nil {
		return source.Plan{}, err
	}
	return source.PlanFolder(p.Prefix, func() (source.Plan, error) { return s.planFolder(ctx, p) }, func() (source.Plan, error) {
		return source.PlanFile(p.String(), p.Prefix, func(key string) (source.File, error) { return s.single(ctx, p, key) })
	})
}

func (s *Source) planFolder(ctx context.Context, p bucketLocation) (source.Plan, error) {
	older := false // the server knows ListObjects alone, which goes on behind the last key
	plan, err := p.List(func(from string) ([]source.File, string, error) {
		query := url.Values{"prefix": {p.Key("")}, "encoding-type": {"url"}}
		switch {
		case older:
			query.Set("marker", from)
		case from != "":
			query.Set("continuation-token", from)
			fallthrough
		default:
			query.Set("list-type", "2")
		}
		r, err := s.do(ctx, p, http.MethodGet, "", query, nil)
		if err != nil {
			return nil, "", err
		}
		defer httpsource.Drain(r)
		if r.StatusCode != http.StatusOK {
			return nil, "", s.responseError(r, p, "")
		}
		var list listing
		if err := httpsource.Decode(r, maxAnswer, p.String(), xml.Unmarshal, &list,
			"the listing is not what S3 gives: AWS_ENDPOINT_URL may name a console or a web site"); err != nil {
			return nil, "", err
		}
		files := make([]source.File, 0, len(list.Contents))
		for _, o := range list.Contents {
			key := o.Key
			if list.EncodingType == "url" {
				if key, err = url.QueryUnescape(o.Key); err != nil {
					return nil, "", httpsource.Malformed(p, "", "the listing has a key that cannot be read")
				}
			}
			if o.ETag == "" { // optional in a listing
				f, err := s.single(ctx, p, key)
				if err != nil {
					return nil, "", err
				}
				f.Name = key
				files = append(files, f)
				continue
			}
			files = append(files, source.File{Name: key, Size: o.Size, Version: httpsource.QuoteETag(o.ETag)})
		}
		if list.Truncated && list.Next == "" || older {
			if len(files) == 0 && list.Truncated || older && len(files) > 0 && files[0].Name <= from {
				return nil, "", source.Fail(source.Malformed, "the listing goes on and does not say where, so its end is not known",
					"the server has to know ListObjectsV2 with its continuation tokens, or ListObjects with its marker").At(p.String(), "")
			}
			if older = true; list.Truncated {
				list.Next = files[len(files)-1].Name
			}
		}
		if !list.Truncated {
			list.Next = ""
		}
		return files, list.Next, nil
	})
	if err != nil {
		return source.Plan{}, err
	}
	return plan, s.digests(ctx, p, plan.Files)
}

// single returns one object, but for its name.
func (s *Source) single(ctx context.Context, p bucketLocation, key string) (source.File, error) {
	r, err := s.head(ctx, p, key)
	if err == nil && r.StatusCode != http.StatusOK { // only a body has the reason, or the region
		if r, err = s.do(ctx, p, http.MethodGet, key, nil, http.Header{"Range": {"bytes=0-0"}}); err == nil {
			defer httpsource.Drain(r)
			if r.StatusCode == http.StatusPartialContent {
				_, total, _ := strings.Cut(r.Header.Get("Content-Range"), "/")
				if r.ContentLength, err = strconv.ParseInt(total, 10, 64); err != nil {
					r.ContentLength, err = -1, nil
				}
			}
		}
	}
	if err != nil {
		return source.File{}, err
	}
	if r.StatusCode != http.StatusOK && r.StatusCode != http.StatusPartialContent {
		return source.File{}, s.responseError(r, p, "")
	}
	if r.ContentLength < 0 || r.Header.Get("ETag") == "" {
		return source.File{}, httpsource.Malformed(p, "", "the object has no size or no ETag")
	}
	f := source.File{Size: r.ContentLength, Version: httpsource.QuoteETag(r.Header.Get("ETag")), Ref: p.Ref(key)}
	s.digest(&f, r.Header)
	return f, nil
}

func (s *Source) head(ctx context.Context, p bucketLocation, key string) (*http.Response, error) {
	r, err := s.do(ctx, p, http.MethodHead, key, nil, http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}})
	if err == nil {
		httpsource.Drain(r)
	}
	return r, err
}

// digests asks for the digests the bucket keeps of the files of weights. A missing
// digest is no error: the loader's checksums remain.
func (s *Source) digests(ctx context.Context, p bucketLocation, files []source.File) error {
	var group errgroup.Group
	group.SetLimit(heads)
	n := 0
	for i := range files {
		if !source.Weights(files[i].Name) || files[i].Size == 0 {
			continue
		}
		if n++; n > maxHeads {
			break
		}
		group.Go(func() error {
			_, key, _ := strings.Cut(files[i].Ref, "|")
			if r, err := s.head(ctx, p, key); err == nil && r.StatusCode == http.StatusOK &&
				httpsource.QuoteETag(r.Header.Get("ETag")) == files[i].Version {
				s.digest(&files[i], r.Header)
			}
			return nil
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// digest stores a digest of the whole object; one is enough, the cheapest first.
func (s *Source) digest(f *source.File, h http.Header) {
	whole := !strings.EqualFold(h.Get("X-Amz-Checksum-Type"), "COMPOSITE")
	sum := func(name string, n int) []byte {
		raw, err := base64.StdEncoding.DecodeString(h.Get("X-Amz-Checksum-" + name))
		if err != nil || len(raw) != n || !whole {
			return nil // composite digests end in -N, which is not base64
		}
		return raw
	}
	if f.CRC32C = sum("Crc32c", 4); f.CRC32C != nil {
		return
	}
	if f.CRC64 = sum("Crc64nvme", 8); f.CRC64 != nil {
		return
	}
	if raw := sum("Sha256", 32); raw != nil {
		f.SHA256 = hex.EncodeToString(raw)
		return
	}
	enc := h.Get("X-Amz-Server-Side-Encryption")
	if raw, err := hex.DecodeString(strings.Trim(f.Version, `"`)); err == nil && len(raw) == 16 &&
		(enc == "" || enc == "AES256" && s.endpoint == nil) &&
		h.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") == "" {
		f.MD5 = raw
	}
}

// Read returns a range of an object in the version of the plan.
func (s *Source) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	p, key, err := httpsource.ParseRef("s3", f)
	if err = cmp.Or(err, s.configError); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		region, moved := s.regionOf(p.Name), false
		body, _, err := httpsource.Range(ctx, s.http,
			httpsource.RangeRequest{
				URL: s.address(p, key, region).String(), Source: p.String(), File: f, Offset: offset, Length: length, ETag: f.Version,
				Sign: func(req *http.Request) error { return s.sign(req, p, region) },
				ResponseError: func(r *http.Response) error {
					moved = s.noteRegion(p.Name, region, r)
					return s.responseError(r, p, f.Name)
				},
			})
		if !moved || try > 0 {
			return body, s.nameEndpoint(httpsource.GoneIsChanged(err))
		}
	}
}

// responseError returns the bucket's refusal, with its code and its message.
func (s *Source) responseError(r *http.Response, p bucketLocation, name string) error {
	e, words := httpsource.Status(r, p.String(), name), httpsource.Words(r)
	var body struct {
		Code string `xml:"Code"`
	}
	_ = xml.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&body) // without it the status remains
	code := body.Code
	e.Detail = fmt.Sprintf("bucket %s: %d%s", p.Name, r.StatusCode, httpsource.Redirect(r))
	if code != "" && len(code) < 60 {
		e.Detail += fmt.Sprintf(" %q", code)
	}
	if r.StatusCode == 401 || r.StatusCode == 403 || strings.Contains(code, "Token") { // ExpiredToken has 400
		e.Detail += ", with " + s.keys.describe()
	}
	if words != "" {
		e.Detail += ": " + words
	}
	switch {
	case s.endpoint != nil && strings.Trim(s.endpoint.Path, "/") != "" && (strings.HasPrefix(code, "NoSuch") || r.StatusCode == 404):
		e.Kind = source.NotFound
		e.Fix = fmt.Sprintf("AWS_ENDPOINT_URL has the path %q before the bucket: where that is the bucket itself, leave it out there",
			s.endpoint.Path)
	case code == "NoSuchBucket":
		e.Kind, e.Fix = source.NotFound, "there is no such bucket; check its name, and AWS_ENDPOINT_URL for a compatible server"
	case code == "NoSuchKey" || r.StatusCode == 404:
		e.Kind, e.Fix = source.NotFound, "check bucket and prefix; names are case-sensitive"
	case code == "InvalidObjectState":
		e.Kind, e.Fix = source.Refused, "the object is archived: restore it first"
	case codeFixes[code] != "":
		e.Fix = codeFixes[code]
	case strings.HasPrefix(code, "KMS."):
		e.Kind, e.Fix = source.Denied, "the key that encrypts the object is disabled or gone: enable it in KMS, and allow kms:Decrypt"
	case code == "RequestTimeTooSkewed":
		e.Kind, e.Fix = source.Denied, "set this machine's clock"
	case code == "ExpiredToken" || code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch" || code == "InvalidToken" ||
		code == "RequestExpired" || code == "TokenRefreshRequired":
		e.Kind, e.Fix = source.Denied, "check the credentials; "
		if s.endpoint != nil && (code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch") {
			e.Fix += "AWS_ENDPOINT_URL has to name the server and region that gave them, and a proxy before it to keep Host and path, which are " +
				"signed; "
		}
		e.Fix += howTo
	case strings.Contains(words, "explicit deny"):
		e.Fix = "change the policy that denies it: no other right outweighs that"
	case code == "" && (r.StatusCode == 401 || r.StatusCode == 403) || code == "AccessDenied":
		if words != "" && !strings.EqualFold(strings.ReplaceAll(words, " ", ""), "AccessDenied") { // such as a quota
			e.Fix = "where a right is missing, "
		}
		e.Fix += "allow it s3:GetObject on the objects, s3:ListBucket on the bucket and, with KMS, kms:Decrypt; " +
			"buckets whose requester pays are not read; " + howTo
	case code == "" && s.endpoint != nil && httpsource.Redirect(r) != "":
		e.Kind, e.Fix = source.Refused, "set AWS_ENDPOINT_URL to that server, if it is meant"
	case r.StatusCode == 301 || r.StatusCode == 307 || code == "AuthorizationHeaderMalformed" ||
		code == "IllegalLocationConstraintException":
		e.Kind, e.Fix = source.Refused, "the bucket is in another region: set AWS_REGION"
	case code == "SlowDown" || code == "RequestTimeout":
		e.Kind, e.Busy = source.Unavailable, true
	case r.StatusCode == 412 || r.StatusCode == 416:
		e.Detail += ": it was overwritten while it was read"
	case e.Fix == "" && (e.Kind == source.Refused || e.Kind == source.Denied):
		e.Fix = "check AWS_ENDPOINT_URL, AWS_REGION, the credentials and the bucket's name"
	}
	if e.Kind == source.Denied || e.Kind == source.NotFound {
		e.Fix = s.otherEndpoint + e.Fix
	}
	return e
}

const virtualStyle = "set THAW_S3_STYLE=virtual"

// codeFixes is what helps against codes that say more than their status.
var codeFixes = map[string]string{
	"AllAccessDisabled":          "access to the bucket is turned off: ask its owner, or check its name",
	"AccountProblem":             "the account has a problem, which its provider knows",
	"SecondLevelDomainForbidden": virtualStyle,
	"PathStyleDomainForbidden":   virtualStyle,
	"NotImplemented":             "the server of AWS_ENDPOINT_URL lacks a part of S3's API: upgrade it",
	"NotSignedUp":                "the account is not signed up for S3",
	"InvalidRequest":             "an object that is encrypted with a key of the customer's own (SSE-C) is not read: store it without one",
	"MethodNotAllowed":           "AWS_ENDPOINT_URL names no endpoint of S3's API, such as a website or a console",
}

// Write stores body as the object name below location, replacing it. The object
// appears when its last byte has arrived. Only compile caches of engines are written.
func (s *Source) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	p, err := parse(location)
	if err != nil {
		return err
	}
	begin, err := body.Seek(0, io.SeekCurrent)
	if err != nil {
		return &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "cannot be read", Err: err}
	}
	prepare := func(region string) (*http.Request, error) {
		if _, err := body.Seek(begin, io.SeekStart); err != nil {
			return nil, &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "cannot be read", Err: err}
		}
		req, err := p.NewUpload(ctx, http.MethodPut, s.address(p, p.Key(name), region).String(), name, body, size)
		if err == nil {
			// A bucket that refuses answers before the body is sent.
			req.Header.Set("Expect", "100-continue")
		}
		return req, err
	}
	r, err := s.send(p, prepare, func(req *http.Request) (*http.Response, error) { return p.Upload(s.http, req, name) })
	if err != nil {
		return err
	}
	defer httpsource.Drain(r)
	if r.StatusCode/100 != 2 {
		return s.responseError(r, p, name)
	}
	return nil
}
