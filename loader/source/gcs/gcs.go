package gcs

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

type Options struct {
	// Getenv reads the environment (os.Getenv).
	Getenv func(string) string
	// Identity sends the machine's identity to an emulator too.
	Identity bool
}

// Source reads buckets. Its methods may be called concurrently.
type Source struct {
	endpoint    string
	configError error
	http        *http.Client
	tokens      *tokens
	writes      *tokens // for Write alone
}

// New returns a source; nothing is read or dialled before it is used.
func New(o Options) *Source {
	s := &Source{endpoint: "https://storage.googleapis.com", http: httpsource.Client(httpsource.Options{})}
	emulator := o.Getenv("STORAGE_EMULATOR_HOST")
	if emulator != "" {
		if !strings.Contains(emulator, "://") {
			emulator = "http://" + emulator
		}
		s.endpoint = strings.TrimRight(emulator, "/")
		_, s.configError = httpsource.ParseEndpoint("STORAGE_EMULATOR_HOST", emulator, "GOOGLE_APPLICATION_CREDENTIALS", "http://127.0.0.1:4443")
	}
	none := emulator != "" && o.Getenv("GOOGLE_APPLICATION_CREDENTIALS") == "" && !o.Identity
	s.tokens, s.writes = newTokens(o.Getenv, none, scopeRead), newTokens(o.Getenv, none, scopeWrite)
	return s
}

func (s *Source) Close() { s.http.CloseIdleConnections(); s.tokens.close(); s.writes.close() }

// Refresh forgets the credentials, so that the next request looks for them.
func (s *Source) Refresh(ctx context.Context, location string) error {
	s.tokens.reset()
	s.writes.reset()
	return nil
}

type bucketLocation = httpsource.Bucket

func parse(location string) (bucketLocation, error) {
	return httpsource.ParseBucket("gs", location, 222)
}

const maxAnswer = 16 << 20

// object is an object's metadata; 64-bit numbers are strings in the API.
type object struct {
	Name            string `json:"name"`
	Size            string `json:"size"`
	Generation      string `json:"generation"`
	MD5             string `json:"md5Hash"`
	CRC32C          string `json:"crc32c"`
	ContentEncoding string `json:"contentEncoding"`
}

const fields = "name,size,generation,md5Hash,crc32c,contentEncoding"

func (s *Source) object(p bucketLocation, key string) string {
	return s.endpoint + "/storage/v1/b/" + p.Name + "/o/" + url.PathEscape(key)
}

func (s *Source) getJSON(ctx context.Context, p bucketLocation, at string, query url.Values, into any) error {
	if s.configError != nil {
		return s.configError
	}
	r, err := httpsource.Send(ctx, s.http, http.MethodGet, at+"?"+query.Encode(), p.String(), "", func(req *http.Request) error {
		return s.authorize(req, p, s.tokens)
	})
	if err != nil {
		return err
	}
	defer httpsource.Drain(r)
	if r.StatusCode != http.StatusOK {
		return responseError(r, p, "", s.tokens)
	}
	return httpsource.Decode(r, maxAnswer, p.String(), json.Unmarshal, into, "the answer is not what the API gives")
}

func (s *Source) authorize(req *http.Request, p bucketLocation, tokens *tokens) error {
	token, err := tokens.get(req.Context())
	if err != nil {
		if req.Context().Err() != nil {
			return context.Cause(req.Context())
		}
		fix := cmp.Or(typeFixes[tokens.credentialsType()], howTo)
		if strings.HasSuffix(err.Error(), malformedKey) {
			fix = "make a new key of that service account, and leave its file as it is downloaded"
		}
		return &source.Error{Kind: source.Denied, Source: p.String(), Fix: fix,
			Detail: fmt.Sprintf("no token could be fetched with %s: %v", tokens.describe(), err)}
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
	return source.PlanFolder(p.Prefix, func() (source.Plan, error) { return s.planFolder(ctx, p, also) }, func() (source.Plan, error) {
		return source.PlanFile(p.String(), p.Prefix, func(key string) (source.File, error) {
			var o object
			if err := s.getJSON(ctx, p, s.object(p, key), url.Values{"fields": {fields}}, &o); err != nil {
				return source.File{}, err
			}
			f, err := fileOf(p, o, also)
			f.Ref = p.Ref(o.Name)
			return f, err
		})
	})
}

func (s *Source) planFolder(ctx context.Context, p bucketLocation, also source.Globs) (source.Plan, error) {
	return p.List(func(from string) ([]source.File, string, error) {
		query := url.Values{"fields": {"nextPageToken,items(" + fields + ")"}, "maxResults": {"1000"}, "prefix": {p.Key("")}}
		if from != "" {
			query.Set("pageToken", from)
		}
		var list struct {
			Items []object `json:"items"`
			Next  string   `json:"nextPageToken"`
		}
		if err := s.getJSON(ctx, p, s.endpoint+"/storage/v1/b/"+p.Name+"/o", query, &list); err != nil {
			return nil, "", err
		}
		files := make([]source.File, 0, len(list.Items))
		for _, o := range list.Items {
			f, err := fileOf(p, o, also)
			if err != nil {
				return nil, "", err
			}
			files = append(files, f)
		}
		return files, list.Next, nil
	})
}

// fileOf returns an object as a file whose name is its whole key.
func fileOf(p bucketLocation, o object, also source.Globs) (source.File, error) {
	name := strings.TrimPrefix(o.Name, p.Key(""))
	size, err := strconv.ParseInt(o.Size, 10, 64)
	if strings.HasSuffix(name, "/") {
		return source.File{Name: o.Name}, nil // stands for a folder
	}
	if err != nil || size < 0 || o.Generation == "" || strings.Trim(o.Generation, "0123456789") != "" {
		return source.File{}, httpsource.Malformed(p, name, "the listing has no size or no generation for it")
	}
	f := source.File{Name: o.Name, Size: size, Version: o.Generation}
	if err := httpsource.CheckEncoding(p.String(), name, o.ContentEncoding); err != nil && also.Includes(name) {
		return f, err
	}
	// One digest is enough; MD5 costs the most processor time.
	if raw, err := base64.StdEncoding.DecodeString(o.CRC32C); err == nil && len(raw) == 4 {
		f.CRC32C = raw
	} else if raw, err := base64.StdEncoding.DecodeString(o.MD5); err == nil && len(raw) == 16 {
		f.MD5 = raw
	}
	return f, nil
}

// Read returns a range of an object in the generation of the plan.
func (s *Source) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	p, key, err := httpsource.ParseRef("gs", f)
	if err = cmp.Or(err, s.configError); err != nil {
		return nil, err
	}
	body, _, err := httpsource.Range(ctx, s.http, httpsource.RangeRequest{
		URL:    s.object(p, key) + "?alt=media&ifGenerationMatch=" + f.Version,
		Source: p.String(), File: f, Offset: offset, Length: length,
		SameVersion:   func(h http.Header) bool { g := h.Get("X-Goog-Generation"); return g == "" || g == f.Version },
		Sign:          func(req *http.Request) error { return s.authorize(req, p, s.tokens) },
		ResponseError: func(r *http.Response) error { return responseError(r, p, f.Name, s.tokens) },
	})
	return body, httpsource.GoneIsChanged(err)
}

// responseError returns the bucket's refusal of a request with one of these tokens.
func responseError(r *http.Response, p bucketLocation, name string, shown *tokens) error {
	e, words := httpsource.Status(r, p.String(), name), httpsource.Words(r)
	var body struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	_ = json.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&body) // without it the status remains
	e.Detail = fmt.Sprintf("bucket %s: %d%s", p.Name, r.StatusCode, httpsource.Redirect(r))
	reason := ""
	if len(body.Error.Errors) > 0 && len(body.Error.Errors[0].Reason) < 60 {
		reason = body.Error.Errors[0].Reason
		e.Detail += fmt.Sprintf(" %q", reason)
	}
	if r.StatusCode == 401 || r.StatusCode == 403 {
		e.Detail += ", with " + shown.describe()
	}
	if words != "" {
		e.Detail += ": " + words
	}
	switch r.StatusCode {
	case 400:
		e.Fix = "check the bucket's name and STORAGE_EMULATOR_HOST"
		if reason == "required" {
			e.Fix = requesterPays
		}
	case 401, 403:
		e.Fix = "give it the role Storage Object Viewer on the bucket; " + howTo
	case 404:
		e.Fix = "check bucket and prefix; names are case-sensitive"
	case 412, 416:
		e.Detail += ": it was overwritten while it was read"
	case 304:
		e.Kind = source.Changed
	}
	if e.Fix = cmp.Or(reasonFixes[reason], e.Fix); reason == "rateLimitExceeded" || reason == "userRateLimitExceeded" { // with any status
		e.Kind, e.Busy, e.Fix = source.Unavailable, true, ""
	}
	return e
}

// reasonFixes is what helps against reasons that say more than their status.
var reasonFixes = map[string]string{
	"userProjectMissing":                           requesterPays,
	"accountDisabled":                              "have the owner of the bucket's project restore its billing",
	"accessNotConfigured":                          "enable the Cloud Storage JSON API in that project",
	"insufficientPermissions":                      "give this machine the access scope devstorage.read_only, or another credential",
	"vpcServiceControlsUniqueIdentifier":           "have this machine's network let in by the VPC Service Controls of the bucket's project",
	"resourceIsEncryptedWithCustomerEncryptionKey": "an object that is encrypted with a key of the customer's own is not read: store it without one",
	"cloudKmsCryptoKeyDestroyed":                   kmsKey, "cloudKmsDisabledCryptoKey": kmsKey, "cloudKmsPermissionDenied": kmsKey,
}

const (
	requesterPays = "the bucket's requester pays, which is not done: have its owner change that, or copy the model"
	kmsKey        = "restore the key in Cloud KMS that encrypts the object, and let Cloud Storage's service agent use it"
)

// Write stores body as the object name below location, replacing it. The object
// appears when its last byte has arrived. Only compile caches of engines are written,
// and only then is a token with the right to write requested.
func (s *Source) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	p, err := parse(location)
	if err = cmp.Or(err, s.configError); err != nil {
		return err
	}
	at := s.endpoint + "/upload/storage/v1/b/" + p.Name + "/o?" + url.Values{"uploadType": {"media"}, "name": {p.Key(name)}}.Encode()
	req, err := p.NewUpload(ctx, http.MethodPost, at, name, body, size)
	if err != nil {
		return err
	}
	if err := s.authorize(req, p, s.writes); err != nil {
		return err
	}
	r, err := p.Upload(s.http, req, name)
	if err != nil {
		return err
	}
	defer httpsource.Drain(r)
	if r.StatusCode/100 != 2 {
		return responseError(r, p, name, s.writes)
	}
	return nil
}
