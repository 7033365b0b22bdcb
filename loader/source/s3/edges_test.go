package s3

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// environment is one of a source with keys.
func environment(more ...string) func(string) string {
	m := map[string]string{"AWS_ACCESS_KEY_ID": "AKIDtest", "AWS_SECRET_ACCESS_KEY": "CANARY", "AWS_REGION": "eu-central-1",
		"AWS_CONFIG_FILE": "/dev/null"}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return func(name string) string { return m[name] }
}

// TestConfiguration: what the environment may say; a mistake in it is the error of every call.
func TestConfiguration(t *testing.T) {
	for _, x := range []struct {
		more []string
		ok   bool
	}{
		{nil, true}, {[]string{"AWS_ENDPOINT_URL", "http://minio:9000/"}, true}, {[]string{"AWS_ENDPOINT_URL", "https://minio/path"}, true}, {[]string{"AWS_ENDPOINT_URL", "ftp://minio"}, false},
		{[]string{"AWS_ENDPOINT_URL", "minio:9000"}, false}, {[]string{"AWS_ENDPOINT_URL", "http://"}, false}, {[]string{"AWS_ENDPOINT_URL", "http://u:CANARY@minio"}, false}, {[]string{"AWS_ENDPOINT_URL", "http://minio?x=CANARY"}, false},
		{[]string{"AWS_ENDPOINT_URL", "ftp://minio", "AWS_ENDPOINT_URL_S3", "http://minio"}, true}, {[]string{"AWS_REGION", "eu central"}, false}, {[]string{"AWS_REGION", "EU"}, false}, {[]string{"AWS_REGION", "eu.evil.example/"}, false},
		{[]string{"AWS_REGION", "", "AWS_DEFAULT_REGION", "x_y"}, false}, {[]string{"AWS_REGION", "", "AWS_DEFAULT_REGION", "ap-south-1"}, true}, {[]string{"AWS_REGION", ""}, true}, {[]string{"AWS_REGION", "EU", "AWS_ENDPOINT_URL", "http://minio"}, true},
	} {
		s := New(Options{Getenv: environment(x.more...)})
		left, cancel := context.WithCancel(t.Context())
		cancel() // nothing is dialled
		f := source.File{Name: "f", Size: 1, Ref: "abc|f"}
		_, planErr := s.Plan(left, "s3://abc/m", nil)
		_, fileErr := s.Plan(left, "s3://abc/m.gguf", nil)
		_, readErr := s.Read(left, f, 0, 1)
		for call, err := range map[string]error{"plan": planErr, "plan of a file": fileErr, "read": readErr, "write": s.Write(left, "s3://abc/m", "f", strings.NewReader("x"), 1)} {
			e, _ := errors.AsType[*source.Error](err)
			if bad := e != nil && e.Kind == source.BadSource; bad == x.ok || bad && (e.Fix == "" || strings.Contains(e.Error(), "CANARY")) ||
				bad && x.more[1] == "ftp://minio" && !strings.Contains(e.Error(), "ftp://minio") {
				t.Errorf("%v: %s: %v", x.more, call, err)
			}
		}
		s.Close()
	}
	for value, want := range map[string]bool{"true": true, "TRUE": true, "1": true, "": false, "0": false, "yes": false} {
		if isTrue(value) != want {
			t.Errorf("%q is true: %v", value, !want)
		}
	}
}

// TestProfile: the region and the endpoint of a profile count where the environment names none.
func TestProfile(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`# of a laptop
[default]
region = ap-south-1 # at home
[profile r2]
region = auto
services = r2-services
endpoint_url = https://all.example/
aws_access_key_id = AKIDprofile
[profile lab]
endpoint_url = https://lab.example:9000/s#3
[profile broken]
endpoint_url = minio:9000
region = EU west
[services r2-services]
dynamodb =
  endpoint_url = https://dynamodb.example
s3 =
  endpoint_url = https://r2.example/
  addressing_style = path
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		more             []string
		region, endpoint string // "": refused
	}{
		{nil, "ap-south-1", "<nil>"},
		{[]string{"AWS_PROFILE", "default"}, "ap-south-1", "<nil>"},
		{[]string{"AWS_PROFILE", "r2"}, "auto", "https://r2.example"},
		{[]string{"AWS_PROFILE", "r2", "AWS_REGION", "eu-west-1", "AWS_ENDPOINT_URL", "http://minio:9000"}, "eu-west-1", "http://minio:9000"},
		{[]string{"AWS_PROFILE", "r2", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"}, "auto", "<nil>"},
		{[]string{"AWS_PROFILE", "lab"}, "us-east-1", "https://lab.example:9000/s#3"},
		{[]string{"AWS_PROFILE", "unknown"}, "us-east-1", "<nil>"},
		{[]string{"AWS_PROFILE", "broken"}, "EU west", ""},
		{[]string{"AWS_PROFILE", "broken", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "1"}, "EU west", ""},
		{[]string{"AWS_CONFIG_FILE", config + ".none"}, "us-east-1", "<nil>"},
	} {
		s := New(Options{Getenv: environment(append([]string{"AWS_REGION", "", "AWS_CONFIG_FILE", config}, x.more...)...)})
		if s.region != x.region || (s.configError != nil) != (x.endpoint == "") || x.endpoint != "" && fmt.Sprint(s.endpoint) != x.endpoint {
			t.Errorf("%v: %s %v, %v", x.more, s.region, s.endpoint, s.configError)
		}
		s.Close()
	}
}

// TestAddresses: where a key of a bucket is.
func TestAddresses(t *testing.T) {
	for _, x := range []struct {
		more              []string
		bucket, key, want string
	}{
		{nil, "abc", "m/f", "https://abc.s3.eu-central-1.amazonaws.com/m/f"}, {nil, "a.bc", "m/f", "https://s3.eu-central-1.amazonaws.com/a.bc/m/f"}, {nil, "abc", "", "https://abc.s3.eu-central-1.amazonaws.com/"},
		{[]string{"AWS_REGION", "cn-north-1"}, "abc", "f", "https://abc.s3.cn-north-1.amazonaws.com.cn/f"}, {[]string{"AWS_REGION", ""}, "abc", "f", "https://abc.s3.us-east-1.amazonaws.com/f"},
		{[]string{"AWS_USE_FIPS_ENDPOINT", "true"}, "abc", "f", "https://abc.s3-fips.eu-central-1.amazonaws.com/f"}, {[]string{"AWS_USE_DUALSTACK_ENDPOINT", "true"}, "a.bc", "f", "https://s3.dualstack.eu-central-1.amazonaws.com/a.bc/f"},
		{[]string{"AWS_USE_DUALSTACK_ENDPOINT", "true", "AWS_USE_FIPS_ENDPOINT", "true"}, "abc", "f", "https://abc.s3-fips.dualstack.eu-central-1.amazonaws.com/f"}, {[]string{"AWS_USE_FIPS_ENDPOINT", "false"}, "abc", "f", "https://abc.s3.eu-central-1.amazonaws.com/f"},
		{[]string{"AWS_REGION", "", "AWS_DEFAULT_REGION", "ap-south-1"}, "abc", "f", "https://abc.s3.ap-south-1.amazonaws.com/f"},
		{[]string{"AWS_ENDPOINT_URL", "http://minio:9000"}, "abc", "m/f", "http://minio:9000/abc/m/f"}, {[]string{"AWS_ENDPOINT_URL", "https://host/s3/"}, "abc", "f", "https://host/s3/abc/f"},
		{[]string{"AWS_ENDPOINT_URL", "http://minio:9000", "THAW_S3_STYLE", "virtual"}, "abc", "f", "http://abc.minio:9000/f"}, {[]string{"AWS_ENDPOINT_URL", "http://minio:9000", "THAW_S3_STYLE", "path"}, "abc", "f", "http://minio:9000/abc/f"},
		{[]string{"AWS_ENDPOINT_URL", "http://minio"}, "abc", "a b/ü+%", "http://minio/abc/a%20b/%C3%BC%2B%25"},
	} {
		s := New(Options{Getenv: environment(x.more...)})
		if got := s.address(bucketLocation{Scheme: "s3", Name: x.bucket}, x.key, s.regionOf(x.bucket)).String(); got != x.want {
			t.Errorf("%v: %s, want %s", x.more, got, x.want)
		}
		s.Close()
	}
	for length, ok := range map[int]bool{63: true, 64: false} {
		if _, err := parse("s3://" + strings.Repeat("a", length)); (err == nil) != ok {
			t.Errorf("a name of %d letters: %v", length, err)
		}
	}
}

// TestAnswers: each refusal of a bucket has its kind, and a way out; its message is
// shown, and nothing else of the body.
func TestAnswers(t *testing.T) {
	var answer func(w http.ResponseWriter, r *http.Request)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer srv.Close()
	s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", srv.URL)})
	defer s.Close()
	for _, x := range []struct {
		status int
		code   string
		kind   source.Kind
		busy   bool
		says   string
	}{
		{404, "NoSuchBucket", source.NotFound, false, "AWS_ENDPOINT_URL"}, {404, "NoSuchKey", source.NotFound, false, "case-sensitive"}, {404, "", source.NotFound, false, "case-sensitive"}, {400, "NoSuchKey", source.NotFound, false, "case-sensitive"},
		{403, "InvalidObjectState", source.Refused, false, "restore it"}, {403, "RequestTimeTooSkewed", source.Denied, false, "clock"}, {403, "ExpiredToken", source.Denied, false, "check the credentials"},
		{403, "InvalidAccessKeyId", source.Denied, false, "check the credentials"}, {403, "SignatureDoesNotMatch", source.Denied, false, "check the credentials"}, {400, "InvalidToken", source.Denied, false, "check the credentials"},
		{403, "AccessDenied", source.Denied, false, "with the key in AWS_ACCESS_KEY_ID: the reason (where a right is missing, allow it s3:GetObject"}, {401, "", source.Denied, false, "s3:ListBucket"}, {301, "PermanentRedirect", source.Refused, false, "AWS_REGION"}, {307, "", source.Refused, false, "AWS_REGION"},
		{400, "AuthorizationHeaderMalformed", source.Refused, false, "AWS_REGION"}, {503, "SlowDown", source.Unavailable, true, "SlowDown"}, {400, "SlowDown", source.Unavailable, true, ""}, {400, "RequestTimeout", source.Unavailable, true, ""},
		{500, "InternalError", source.Unavailable, false, `500 "InternalError"`}, {412, "PreconditionFailed", source.Changed, false, "overwritten"}, {416, "InvalidRange", source.Changed, false, "overwritten"}, {400, "Odd", source.Refused, false, `400 "Odd"`},
		{400, strings.Repeat("x", 60), source.Refused, false, "bucket abc: 400"}, {400, strings.Repeat("x", 59), source.Refused, false, "xxx"}, {429, "", source.Unavailable, true, ""},
	} {
		answer = func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(x.status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>the reason</Message><StringToSign>CANARY</StringToSign></Error>", x.code)
		}
		_, planErr := s.Plan(t.Context(), "s3://abc/m", nil)
		writeErr := s.Write(t.Context(), "s3://abc/m", "f", strings.NewReader("x"), 1)
		for call, err := range map[string]error{"plan": planErr, "write": writeErr} {
			e, _ := errors.AsType[*source.Error](err)
			if e == nil || e.Kind != x.kind || e.Busy != x.busy || !strings.Contains(e.Error(), x.says) ||
				strings.Contains(e.Error(), "CANARY") || !strings.Contains(e.Error(), ": the reason") ||
				!strings.HasPrefix(e.Source, "s3://abc/m") ||
				len(x.code) == 60 && strings.Contains(e.Error(), "xxx") {
				t.Errorf("%d %s: %s: %v", x.status, x.code, call, err)
			}
		}
		_, readErr := s.Read(t.Context(), source.File{Name: "f", Size: 10, Version: `"v"`, Ref: "abc|m/f"}, 0, 1)
		want := x.kind
		if want == source.NotFound {
			want = source.Changed
		}
		if source.KindOf(readErr) != want {
			t.Errorf("%d %s: read: %v", x.status, x.code, readErr)
		}
	}
}

// TestEndpointWithABucket: an endpoint that ends with the bucket makes the server look for another.
func TestEndpointWithABucket(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(404)
		fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
	}))
	defer srv.Close()
	s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", srv.URL+"/abc")})
	defer s.Close()
	if _, err := s.Plan(t.Context(), "s3://abc/m", nil); err == nil || !strings.Contains(err.Error(), `AWS_ENDPOINT_URL has the path "/abc" before the bucket`) {
		t.Error(err)
	}
}

// TestListings: pages of a bucket that are not what S3 gives, and what is asked for the files
// that they hold.
func TestListings(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	pages, heads := map[string]string{}, http.Header{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodHead {
			asked = append(asked, strings.TrimPrefix(r.URL.Path, "/abc/"))
			for name, v := range heads {
				w.Header()[name] = v
			}
			return
		}
		q := r.URL.Query()
		older := q.Has("marker") && !q.Has("list-type") && !q.Has("continuation-token")
		if q.Get("list-type") != "2" && !older || q.Get("prefix") != "m/" || q.Get("encoding-type") != "url" {
			t.Errorf("asked for %s", r.URL)
		}
		io.WriteString(w, pages[cmp.Or(q.Get("continuation-token"), q.Get("marker"))])
	}))
	defer srv.Close()
	s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", srv.URL)})
	defer s.Close()
	object := func(key string, size int) string {
		return fmt.Sprintf("<Contents><Key>%s</Key><ETag>&quot;v1&quot;</ETag><Size>%d</Size></Contents>", key, size)
	}
	const more = "<IsTruncated>true</IsTruncated>"
	page := func(more string) string { return "<ListBucketResult>" + more + "</ListBucketResult>" }
	for name, x := range map[string]struct {
		pages map[string]string
		want  source.Kind
		files string
		heads string // what was asked for by itself
	}{
		"two pages":            {map[string]string{"": page(object("m/a.gguf", 3) + "<IsTruncated>true</IsTruncated><NextContinuationToken>t 1</NextContinuationToken>"), "t 1": page(object("m/config.json", 1) + object("m/empty.gguf", 0))}, "", "a.gguf config.json empty.gguf", "m/a.gguf"},
		"a token without more": {map[string]string{"": page(object("m/a.json", 3) + "<NextContinuationToken>x</NextContinuationToken>")}, "", "a.json", ""},
		"no token, one page":   {map[string]string{"": page(object("m/a.json", 3) + more), "m/a.json": page("")}, "", "a.json", ""},
		"no token, three":      {map[string]string{"": page(object("m/a.json", 3) + more), "m/a.json": page(object("m/b", 3) + object("m/c d", 3) + more), "m/c d": page(object("m/e", 3))}, "", "a.json b c d e", ""},
		"no token at last":     {map[string]string{"": page(object("m/a", 3) + more + "<NextContinuationToken>t</NextContinuationToken>"), "t": page(object("m/b", 3) + more), "m/b": page(object("m/c", 3))}, "", "a b c", ""},
		"neither":              {map[string]string{"": page(object("m/a.json", 3) + more), "m/a.json": page(object("m/a.json", 3) + more)}, source.Malformed, "", ""},
		"neither, then an end": {map[string]string{"": page(object("m/a.json", 3) + more), "m/a.json": page(object("m/a.json", 3))}, source.Malformed, "", ""},
		"no token, no object":  {map[string]string{"": page(more)}, source.Malformed, "", ""},
		"the same token again": {map[string]string{"": page(object("m/a", 3) + more + "<NextContinuationToken>t</NextContinuationToken>"), "t": page(object("m/a", 3) + more + "<NextContinuationToken>t</NextContinuationToken>")}, source.Malformed, "", ""},
		"escaped names":        {map[string]string{"": page("<EncodingType>url</EncodingType>" + object("m/a%20b+c.json", 3))}, "", "a b c.json", ""},
		"names as they are":    {map[string]string{"": page(object("m/a%20b.json", 3))}, "", "a%20b.json", ""},
		"a bad escape":         {map[string]string{"": page("<EncodingType>url</EncodingType>" + object("m/a%2", 3))}, source.Malformed, "", ""},
		"no ETag":              {map[string]string{"": page("<Contents><Key>m/a.json</Key><Size>1</Size></Contents>")}, source.Malformed, "", "m/a.json"},
		"no XML":               {map[string]string{"": "hello"}, source.Malformed, "", ""},
	} {
		mu.Lock()
		pages, asked = x.pages, nil
		mu.Unlock()
		plan, err := s.Plan(t.Context(), "s3://abc/m", nil)
		var names []string
		for _, f := range plan.Files {
			names = append(names, f.Name)
		}
		if source.KindOf(err) != x.want || strings.Join(names, " ") != x.files && x.want == "" || strings.Join(asked, " ") != x.heads {
			t.Errorf("%s: %q, asked for %q, %v", name, names, asked, err)
		}
	}
	mu.Lock()
	pages = map[string]string{"": page(more)}
	mu.Unlock()
	if _, err := s.Plan(t.Context(), "s3://abc/m", nil); err == nil || !strings.Contains(err.Error(), "ListObjectsV2") {
		t.Errorf("no token: %v", err)
	}
	// An object that is listed without an ETag has one of its own.
	mu.Lock()
	pages, heads = map[string]string{"": page("<Contents><Key>m/a.json</Key><Size>1</Size></Contents>")}, http.Header{"Etag": {"v7"}, "Content-Length": {"1"}}
	mu.Unlock()
	if plan, err := s.Plan(t.Context(), "s3://abc/m", nil); err != nil || len(plan.Files) != 1 || plan.Files[0].Version != `"v7"` || plan.Files[0].Name != "a.json" {
		t.Errorf("listed without an ETag: %+v, %v", plan, err)
	}
	// One file, and the digests that its answer has.
	for _, x := range []struct {
		fields []string
		want   source.Kind
	}{{[]string{"Etag", `"v"`, "Content-Length", "5"}, ""}, {[]string{"Content-Length", "5"}, source.Malformed}, {[]string{"Etag", `"v"`}, ""}} {
		mu.Lock()
		heads = http.Header{"X-Amz-Checksum-Crc32c": {base64.StdEncoding.EncodeToString(make([]byte, 4))}}
		for i := 0; i < len(x.fields); i += 2 {
			heads.Set(x.fields[i], x.fields[i+1])
		}
		mu.Unlock()
		plan, err := s.Plan(t.Context(), "s3://abc/m/f.gguf", nil)
		if heads.Get("Content-Length") == "" && source.KindOf(err) == source.Malformed {
			continue // the server of this test may leave the length out
		}
		if source.KindOf(err) != x.want || x.want == "" && (len(plan.Files) != 1 || plan.Files[0].Version != `"v"` || len(plan.Files[0].CRC32C) != 4 || plan.Files[0].Ref != "abc|m/f.gguf") {
			t.Errorf("%v: %+v, %v", x.fields, plan, err)
		}
	}
}

// TestKeysLast: credentials are looked for once, until they are told to be others.
func TestKeysLast(t *testing.T) {
	k := newKeys(environment())
	defer k.close()
	left, cancel := context.WithCancelCause(t.Context())
	cancel(io.EOF)
	if _, err := k.get(left); err != io.EOF {
		t.Error(err)
	}
	v, err := k.get(t.Context())
	if err != nil || v.AccessKeyID != "AKIDtest" || v.SecretAccessKey != "CANARY" || k.describe() != "the key in AWS_ACCESS_KEY_ID" {
		t.Errorf("%q by %s, %v", v.AccessKeyID, k.describe(), err)
	}
	if left := time.Until(k.until); left <= 0 || left > credentialLifetime {
		t.Errorf("used for %v", left)
	}
	if v, err := k.get(left); err != nil || v.AccessKeyID != "AKIDtest" { // no fetch
		t.Error(err)
	}
	if k.expire(); !k.until.IsZero() {
		t.Error("it is used on")
	}
	anonymous := newKeys(environment("THAW_S3_ANONYMOUS", "1"))
	defer anonymous.close()
	if v, err := anonymous.get(t.Context()); err != nil || v.AccessKeyID != "" || anonymous.describe() != "no credentials" {
		t.Errorf("%q by %s, %v", v.AccessKeyID, anonymous.describe(), err)
	}
	for _, x := range []struct{ name, value, want string }{{"AWS_PROFILE", "nope", `the profile "nope" of AWS_PROFILE`}, {"AWS_ACCESS_KEY_ID", "a", "one is missing"},
		{"AWS_SHARED_CREDENTIALS_FILE", "/none/c", `no credentials: AWS_SHARED_CREDENTIALS_FILE names "/none/c": no such file or directory`},
		{"AWS_CONFIG_FILE", "/none/c", `AWS_CONFIG_FILE names "/none/c": no such file or directory`}} {
		env := map[string]string{"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
		env[x.name] = x.value
		k := newKeys(func(name string) string { return env[name] })
		if v, err := k.get(t.Context()); err != nil || v.AccessKeyID != "" || !strings.Contains(k.describe(), x.want) {
			t.Errorf("%s: %v, %s", x.name, err, k.describe())
		}
		k.close()
	}
}

// TestKeysOfTheMachine: a profile and the role of this machine are asked again after a while, and
// not for each request; whether there is a role to ask is what the environment says.
func TestKeysOfTheMachine(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "credentials")
	write := func(id string) {
		if err := os.WriteFile(profile, []byte("[default]\naws_access_key_id = "+id+"\naws_secret_access_key = CANARY\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked, answer := 0, ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; answer == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, answer)
	}))
	defer srv.Close()
	for _, name := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_PROFILE"} {
		t.Setenv(name, "") // the library looks here first
	}
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", srv.URL)
	for _, x := range []struct {
		file, answer  string
		env           []string
		first, second string // key, before and after the profile is another
		asked         int
	}{
		{"one", "", nil, "one", "two", 0},
		{"", "", []string{"AWS_CONTAINER_CREDENTIALS_FULL_URI", srv.URL}, "", "two", 1},
		{"", "", []string{"AWS_EC2_METADATA_DISABLED", "true"}, "", "two", 0},
		{"", `{"AccessKeyId":"role","SecretAccessKey":"CANARY","Expiration":"2999-01-01T00:00:00Z"}`,
			[]string{"AWS_EC2_METADATA_DISABLED", "true", "AWS_CONTAINER_CREDENTIALS_FULL_URI", srv.URL}, "role", "role", 1},
	} {
		os.Remove(profile)
		if x.file != "" {
			write(x.file)
		}
		asked, answer = 0, x.answer
		k := newKeys(environment(append([]string{"AWS_ACCESS_KEY_ID", "", "AWS_SECRET_ACCESS_KEY", "", "AWS_SHARED_CREDENTIALS_FILE", profile}, x.env...)...))
		get := func() string {
			v, err := k.get(t.Context())
			if err != nil {
				t.Error(err)
			}
			return v.AccessKeyID
		}
		before := get()
		write("two")
		if again := get(); before != x.first || again != x.first || asked != x.asked {
			t.Errorf("%+v: %q, then %q, the role asked %d times", x, before, again, asked)
		}
		k.until = time.Now()
		if after := get(); after != x.second || asked != x.asked {
			t.Errorf("%+v: %q after a while, the role asked %d times", x, after, asked)
		}
		k.close()
	}
}
