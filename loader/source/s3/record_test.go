package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// bucketServer notes what it is asked for, and how that is signed.
type bucketServer struct {
	url     string
	conns   *sourcetest.Connections
	mu      sync.Mutex
	asked   []string
	objects []string                                             // keys that are listed
	before  func(w http.ResponseWriter, r *http.Request) bool    // whether it has answered
	head    func(key string, w http.ResponseWriter) (tag string) // of an object; nil: its own tag
}

var signedBy = regexp.MustCompile(`Credential=([^/]*)/\d+/([^/]*)/s3/aws4_request`)

func serveBucket(t *testing.T) *bucketServer {
	s := &bucketServer{}
	srv := httptest.NewUnstartedServer(s)
	s.conns = sourcetest.CountConnections(srv)
	srv.Start()
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// source is one of the server.
func (s *bucketServer) source(t *testing.T, more ...string) *Source {
	out := New(Options{Getenv: environment(append([]string{"AWS_ENDPOINT_URL", s.url}, more...)...)})
	t.Cleanup(out.Close)
	return out
}

func (s *bucketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	line := r.Method + " " + r.URL.RequestURI()
	if m := signedBy.FindStringSubmatch(r.Header.Get("Authorization")); m != nil {
		line += " by " + m[1] + " in " + m[2]
	}
	if token := r.Header.Get("X-Amz-Security-Token"); token != "" {
		line += " with " + token
	}
	s.mu.Lock()
	s.asked = append(s.asked, line)
	s.mu.Unlock()
	switch key := strings.TrimPrefix(r.URL.Path, "/abc/"); {
	case s.before != nil && s.before(w, r):
	case r.Method == http.MethodHead:
		tag := key
		if s.head != nil {
			tag = s.head(key, w)
		}
		w.Header().Set("ETag", `"`+tag+`"`)
		w.Header().Set("Content-Length", "5")
	case r.URL.Query().Has("prefix"):
		fmt.Fprint(w, "<ListBucketResult>")
		for _, key := range s.objects {
			fmt.Fprintf(w, `<Contents><Key>%s</Key><ETag>"%s"</ETag><Size>5</Size></Contents>`, key, key)
		}
		fmt.Fprint(w, "</ListBucketResult>")
	case r.Method == http.MethodPut:
		_, _ = io.Copy(io.Discard, r.Body)
	default:
		http.NotFound(w, r)
	}
}

// take is what was asked since the last call, sorted.
func (s *bucketServer) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	slices.Sort(asked)
	return asked
}

// TestRecordOfRequests: what is asked, by which key and in which region, in each environment,
// and after each redirect to another region.
func TestRecordOfRequests(t *testing.T) {
	var out strings.Builder
	show := func(s *bucketServer, what string, plan source.Plan, err error) {
		fmt.Fprintf(&out, "%s: %v\n", what, source.Names(plan.Files))
		for _, line := range s.take() {
			fmt.Fprintf(&out, "\t%s\n", line)
		}
		if err != nil {
			fmt.Fprintf(&out, "\t%s %s\n", source.KindOf(err), strings.ReplaceAll(err.Error(), s.url, "URL"))
		}
	}
	for _, more := range [][]string{
		nil, {"AWS_DEFAULT_REGION", "ap-south-1"}, {"AWS_REGION", "", "AWS_DEFAULT_REGION", "ap-south-1"}, {"AWS_REGION", ""}, {"AWS_SESSION_TOKEN", "session"}, {"THAW_S3_ANONYMOUS", "true"},
		{"THAW_S3_ANONYMOUS", "no", "AWS_SESSION_TOKEN", "session"},
	} {
		s := serveBucket(t)
		s.objects = []string{"m/a.json", "m/b.gguf"}
		source := s.source(t, more...)
		plan, err := source.Plan(t.Context(), "s3://abc/m", nil)
		show(s, fmt.Sprintf("%q", more), plan, err)
		err = source.Write(t.Context(), "s3://abc/m", "a b", strings.NewReader("x"), 1)
		show(s, "write", plan, err)
		s.conns.CheckClosed(t, source)
	}
	for _, status := range []int{200, 301, 400, 404, 500} {
		for _, region := range []string{"", "eu-central-1", "ap-south-1", "evil.example/", "EU"} {
			s := serveBucket(t)
			s.objects = []string{"m/a.json"}
			s.before = func(w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("X-Amz-Bucket-Region", region)
				if m := signedBy.FindStringSubmatch(r.Header.Get("Authorization")); m != nil && m[2] == region && region != "eu-central-1" ||
					status == 200 {
					return false
				}
				w.WriteHeader(status)
				fmt.Fprint(w, "<Error><Code>X</Code></Error>")
				return true
			}
			source := s.source(t)
			for range 2 {
				plan, err := source.Plan(t.Context(), "s3://abc/m", nil)
				show(s, fmt.Sprintf("%d of region %q", status, region), plan, err)
			}
			s.conns.CheckClosed(t, source)
		}
	}
	for _, prefix := range []string{"", "a b+c%&=", "\u00fc"} {
		s := serveBucket(t)
		s.objects = []string{strings.ReplaceAll(prefix+"/x.json", "&", "&amp;")}
		plan, err := s.source(t).Plan(t.Context(), "s3://abc/"+prefix, nil)
		show(s, prefix, plan, err)
	}
	sourcetest.Compare(t, "requests.txt", out.String())
}

// TestDigestsOfOtherVersions: the digest of an object counts only if it is of the version that
// was listed, and only so many are asked for.
func TestDigestsOfOtherVersions(t *testing.T) {
	s := serveBucket(t)
	s.objects = []string{"m/a.gguf", "m/b.gguf"}
	s.head = func(key string, w http.ResponseWriter) string {
		w.Header().Set("X-Amz-Checksum-Crc32c", "AAAAAA==")
		return strings.Replace(key, "b", "changed", 1)
	}
	src := s.source(t)
	plan, err := src.Plan(t.Context(), "s3://abc/m", nil)
	if err != nil || len(plan.Files) != 2 || plan.Files[0].CRC32C == nil || plan.Files[1].CRC32C != nil {
		t.Errorf("%+v, %v", plan.Files, err)
	}
	s.objects = nil
	for i := range maxHeads + 1 {
		s.objects = append(s.objects, fmt.Sprintf("m/%d.gguf", i))
	}
	s.take()
	plan, err = src.Plan(t.Context(), "s3://abc/m", nil)
	if asked := s.take(); err != nil || len(plan.Files) != maxHeads+1 || len(asked) != maxHeads+1 { // with the listing
		t.Errorf("%d requests for %d files, %v", len(asked), len(plan.Files), err)
	}
}

// TestDigestsAtOnce: digests are asked for with a bound, and a caller that leaves meanwhile gets
// no plan.
func TestDigestsAtOnce(t *testing.T) {
	s := serveBucket(t)
	for i := range 3 * heads {
		s.objects = append(s.objects, fmt.Sprintf("m/%d.gguf", i))
	}
	left := make(chan struct{})
	var mu sync.Mutex
	atOnce, most := 0, 0
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodHead {
			return false
		}
		mu.Lock()
		atOnce++
		most = max(most, atOnce)
		mu.Unlock()
		<-left
		mu.Lock()
		atOnce--
		mu.Unlock()
		return false
	}
	src := s.source(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	got := make(chan error, 1)
	go func() {
		_, err := src.Plan(ctx, "s3://abc/m", nil)
		got <- err
	}()
	testkit.Eventually(t, "digests are asked for", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return atOnce >= heads
	})
	for range 3 * heads { // time in which more might come
		if r, err := http.Get(s.url); err != nil {
			t.Error(err)
		} else {
			r.Body.Close()
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel(over)
	close(left)
	if err := <-got; err != over {
		t.Errorf("of a caller that left: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if most != heads {
		t.Errorf("%d at once, want %d", most, heads)
	}
}

// TestRecordOfRefusals: what is made of each status and code of a server.
func TestRecordOfRefusals(t *testing.T) {
	s := New(Options{Getenv: environment("THAW_S3_ANONYMOUS", "true")})
	t.Cleanup(s.Close)
	codes := []string{"", "NoSuchBucket", "NoSuchKey", "InvalidObjectState", "KMS.DisabledException", "RequestTimeTooSkewed", "ExpiredToken", "InvalidAccessKeyId",
		"SignatureDoesNotMatch", "InvalidToken", "RequestExpired", "TokenRefreshRequired", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
		"SlowDown", "RequestTimeout", "Other", strings.Repeat("x", 59), strings.Repeat("x", 60)}
	codes = append(codes, slices.Sorted(maps.Keys(codeFixes))...)
	var out strings.Builder
	for _, code := range codes {
		before := ""
		for _, status := range []int{301, 304, 307, 400, 401, 403, 404, 405, 409, 412, 416, 429, 500, 503} {
			body := "<Error><Code>" + code + "</Code><Message>words of the server</Message></Error>"
			if code == "" {
				body = "no XML"
			}
			r := &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{"Retry-After": {"7"}}}
			line := sourcetest.Describe(s.responseError(r, bucketLocation{Scheme: "s3", Name: "b"}, "f"))
			if line = strings.ReplaceAll(line, fmt.Sprint(status), "STATUS"); line != before {
				fmt.Fprintf(&out, "%q %d: %s\n", code, status, line)
			}
			before = line
		}
	}
	sourcetest.Compare(t, "refusals.txt", out.String())
}

// TestRecordOfDigests: which digest of an object is kept, by what its server says of it.
func TestRecordOfDigests(t *testing.T) {
	const crc32c, crc64, sha = "AAAAAQ==", "AAAAAAAAAAI=", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAM="
	tag := `"00000000000000000000000000000004"`
	own, amazon := &Source{endpoint: &url.URL{}}, &Source{}
	var out strings.Builder
	for _, x := range []struct {
		version string
		fields  []string
	}{
		{tag, nil}, {`"00000000000000000000000000000004-2"`, nil}, {`"0000000000000000000000000000000004"`, nil}, {`"x0000000000000000000000000000004"`, nil},
		{tag, []string{"Crc32c", crc32c, "Crc64nvme", crc64, "Sha256", sha}}, {tag, []string{"Crc64nvme", crc64, "Sha256", sha}}, {tag, []string{"Sha256", sha}},
		{tag, []string{"Crc32c", crc64}}, {tag, []string{"Crc64nvme", crc32c}}, {tag, []string{"Sha256", crc32c}}, {tag, []string{"Crc32c", crc32c + "-2"}},
		{tag, []string{"Crc32c", crc32c, "Type", "COMPOSITE"}}, {tag, []string{"Crc32c", crc32c, "Type", "composite"}}, {tag, []string{"Crc32c", crc32c, "Type", "FULL_OBJECT"}},
	} {
		for _, encryption := range []string{"", "AES256", "aws:kms"} {
			for _, customer := range []string{"", "AES256"} {
				h := http.Header{"X-Amz-Server-Side-Encryption": {encryption}, "X-Amz-Server-Side-Encryption-Customer-Algorithm": {customer}}
				for i := 0; i < len(x.fields); i += 2 {
					h.Set("X-Amz-Checksum-"+x.fields[i], x.fields[i+1])
				}
				a, b := source.File{Version: x.version}, source.File{Version: x.version}
				amazon.digest(&a, h)
				own.digest(&b, h)
				fmt.Fprintf(&out, "%s %q encrypted %q by customer %q: crc32c %x crc64 %x sha %s md5 %x; of another server %x\n",
					x.version, x.fields, encryption, customer, a.CRC32C, a.CRC64, a.SHA256, a.MD5, b.MD5)
			}
		}
	}
	sourcetest.Compare(t, "digests.txt", out.String())
}
