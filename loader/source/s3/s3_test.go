package s3_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/s3"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bucket = "weights"

// server is gofakes3 behind fault injection and a check of signatures.
type server struct {
	url       string
	back      gofakes3.Backend
	intercept atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	requests  atomic.Int64
}

func start(t *testing.T) *server {
	t.Helper()
	back := s3mem.New()
	if err := back.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	s := &server{back: back}
	inner := gofakes3.New(back, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if intercept := s.intercept.Load(); intercept != nil && (*intercept)(w, r) {
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	s.url = h.URL
	return s
}

func (s *server) env(extra ...string) func(string) string {
	m := map[string]string{"AWS_ENDPOINT_URL_S3": s.url, "AWS_ACCESS_KEY_ID": "AKIDtest", "AWS_SECRET_ACCESS_KEY": "CANARYsecret", "AWS_REGION": "eu-central-1",
		"AWS_CONFIG_FILE": "/dev/null"}
	for i := 0; i < len(extra); i += 2 {
		m[extra[i]] = extra[i+1]
	}
	return func(k string) string { return m[k] }
}

func (s *server) put(t *testing.T, key string, body []byte) {
	t.Helper()
	if _, err := s.back.PutObject(bucket, key, map[string]string{}, bytes.NewReader(body), int64(len(body)), nil); err != nil {
		t.Fatal(err)
	}
}

func (s *server) fault(f func(w http.ResponseWriter, r *http.Request) bool) { s.intercept.Store(&f) }

func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>the reason</Message><StringToSign>CANARY</StringToSign></Error>`, code)
}

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
		srv := start(t)
		srv.put(t, "elsewhere/config.json", nil)
		srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=AKIDtest/") ||
				strings.Contains(r.Header.Get("Authorization"), "CANARY") {
				fail(w, http.StatusForbidden, "AccessDenied")
				return true
			}
			return false
		})
		s := s3.New(s3.Options{Getenv: srv.env()})
		t.Cleanup(s.Close)
		return sourcetest.Location{
			Source: s, Location: "s3://" + bucket + "/a/model", Nowhere: "s3://" + bucket + "/a/mode",
			Put: func(t *testing.T, name string, body []byte) { srv.put(t, "a/model/"+name, body) },
			Delete: func(t *testing.T, name string) {
				if _, err := srv.back.DeleteObject(bucket, "a/model/"+name); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func TestErrors(t *testing.T) {
	srv := start(t)
	srv.put(t, "m/model.safetensors", make([]byte, 100))
	s := s3.New(s3.Options{Getenv: srv.env()})
	defer s.Close()
	plan, err := s.Plan(t.Context(), "s3://"+bucket+"/m", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		status     int
		code       string
		plan, read source.Kind
		wantText   string
	}{
		{403, "AccessDenied", source.Denied, source.Denied, "s3:ListBucket"},
		{403, "InvalidAccessKeyId", source.Denied, source.Denied, "AWS_ACCESS_KEY_ID"},
		{400, "ExpiredToken", source.Denied, source.Denied, "credentials"},
		{403, "RequestTimeTooSkewed", source.Denied, source.Denied, "clock"},
		{403, "InvalidObjectState", source.Refused, source.Refused, "archived"},
		{404, "NoSuchBucket", source.NotFound, source.Changed, ""},
		{404, "NoSuchKey", source.NotFound, source.Changed, ""},
		{503, "SlowDown", source.Unavailable, source.Unavailable, ""},
		{500, "InternalError", source.Unavailable, source.Unavailable, ""},
		{412, "PreconditionFailed", source.Changed, source.Changed, ""},
		{301, "PermanentRedirect", source.Refused, source.Refused, "AWS_REGION"},
	} {
		srv.fault(func(w http.ResponseWriter, r *http.Request) bool { fail(w, tc.status, tc.code); return true })
		_, perr := s.Plan(t.Context(), "s3://"+bucket+"/m", nil)
		_, rerr := s.Read(t.Context(), plan.Files[0], 0, 10)
		if source.KindOf(perr) != tc.plan || source.KindOf(rerr) != tc.read || !strings.Contains(perr.Error(), tc.wantText) ||
			strings.Contains(perr.Error()+rerr.Error(), "CANARY") {
			t.Errorf("%s: %v; %v", tc.code, perr, rerr)
		}
	}
	for _, bad := range []string{"s3://", "s3://B/x", "s3://a..b/x", "s3://weights/../x", "s3://weights/a//b", "s3://weights/x?X-Amz-Signature=CANARY", "gs://weights/x", "s3://u:CANARY@weights/x"} {
		if _, err := s.Plan(t.Context(), bad, nil); source.KindOf(err) != source.BadSource || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// A bucket in another region says so, and is asked there from then on.
func TestRegion(t *testing.T) {
	srv := start(t)
	srv.put(t, "m/model.safetensors", make([]byte, 100))
	var wrong atomic.Int64
	srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Header.Get("Authorization"), "/ap-south-1/s3/") {
			return false
		}
		wrong.Add(1)
		w.Header().Set("X-Amz-Bucket-Region", "ap-south-1")
		fail(w, http.StatusBadRequest, "AuthorizationHeaderMalformed")
		return true
	})
	s := s3.New(s3.Options{Getenv: srv.env()})
	defer s.Close()
	var plan source.Plan
	for range 2 {
		var err error
		if plan, err = s.Plan(t.Context(), "s3://"+bucket+"/m", nil); err != nil {
			t.Fatal(err)
		}
		r, err := s.Read(t.Context(), plan.Files[0], 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	if n := wrong.Load(); n != 1 {
		t.Errorf("%d requests to the wrong region", n)
	}
	// A read may be the first request, as after a start with a plan that was kept.
	first := s3.New(s3.Options{Getenv: srv.env()})
	defer first.Close()
	r, err := first.Read(t.Context(), plan.Files[0], 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

func TestDigests(t *testing.T) {
	srv := start(t)
	body := bytes.Repeat([]byte("x"), 1000)
	srv.put(t, "m/model.safetensors", body)
	crc := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	sum := sha256.Sum256(body)
	b64 := base64.StdEncoding.EncodeToString
	for _, tc := range []struct {
		name   string
		header map[string]string
		want   string
	}{
		{"none but the ETag", nil, "md5"},
		{"under a key", map[string]string{"X-Amz-Server-Side-Encryption": "aws:kms"}, ""},
		{"a compatible's own key", map[string]string{"X-Amz-Server-Side-Encryption": "AES256"}, ""},
		{"a customer's key", map[string]string{"X-Amz-Server-Side-Encryption-Customer-Algorithm": "AES256"}, ""},
		{"crc32c", map[string]string{"X-Amz-Checksum-Crc32c": b64([]byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)}), "X-Amz-Checksum-Type": "FULL_OBJECT"}, "crc32c"},
		{"crc32c of parts", map[string]string{"X-Amz-Checksum-Crc32c": b64(make([]byte, 4)) + "-3", "X-Amz-Checksum-Type": "COMPOSITE"}, "md5"},
		{"crc64", map[string]string{"X-Amz-Checksum-Crc64nvme": b64(make([]byte, 8))}, "crc64"},
		{"sha256", map[string]string{"X-Amz-Checksum-Sha256": b64(sum[:])}, "sha256"},
	} {
		srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				for k, v := range tc.header {
					w.Header().Set(k, v)
				}
			}
			return false
		})
		s := s3.New(s3.Options{Getenv: srv.env()})
		plan, err := s.Plan(t.Context(), "s3://"+bucket+"/m", nil)
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
		f := plan.Files[0]
		got := map[bool]string{true: "md5"}[f.MD5 != nil] + map[bool]string{true: "crc32c"}[f.CRC32C != nil] + map[bool]string{true: "crc64"}[f.CRC64 != nil] + map[bool]string{true: "sha256"}[f.SHA256 != ""]
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestCredentials(t *testing.T) {
	srv := start(t)
	srv.put(t, "m/x.gguf", make([]byte, 10))
	var header atomic.Value
	srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
		header.Store(r.Header.Get("Authorization"))
		return false
	})
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = WRONG\naws_secret_access_key = x\n[models]\naws_access_key_id = "+
		"PROFILEKEY\naws_secret_access_key = CANARY\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config")
	profiles := "[default]\naws_access_key_id = WRONG\naws_secret_access_key = x\n" +
		"[profile lab]\naws_access_key_id = CONFIGKEY\naws_secret_access_key = CANARY\nregion = eu-west-1\n"
	if err := os.WriteFile(config, []byte(profiles), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		env  []string
		want string
	}{
		{"profile of the other file", []string{"AWS_ACCESS_KEY_ID", "", "AWS_SHARED_CREDENTIALS_FILE", file, "AWS_CONFIG_FILE", config, "AWS_PROFILE", "lab", "AWS_EC2_METADATA_DISABLED", "true"}, "Credential=CONFIGKEY/"},
		{"default of the other file", []string{"AWS_ACCESS_KEY_ID", "", "AWS_SHARED_CREDENTIALS_FILE", file + ".none", "AWS_CONFIG_FILE", config, "AWS_EC2_METADATA_DISABLED", "true"}, "Credential=WRONG/"},
		{"environment", nil, "Credential=AKIDtest/"},
		{"profile", []string{"AWS_ACCESS_KEY_ID", "", "AWS_SHARED_CREDENTIALS_FILE", file, "AWS_PROFILE", "models", "AWS_EC2_METADATA_DISABLED", "true"}, "Credential=PROFILEKEY/"},
		{"anonymous", []string{"THAW_S3_ANONYMOUS", "true"}, ""},
		{"nothing", []string{"AWS_ACCESS_KEY_ID", "", "AWS_SHARED_CREDENTIALS_FILE", file + ".none", "AWS_CONFIG_FILE", file + ".none", "AWS_EC2_METADATA_DISABLED", "true"}, ""},
	} {
		s := s3.New(s3.Options{Getenv: srv.env(tc.env...)})
		_, err := s.Plan(t.Context(), "s3://"+bucket+"/m", nil)
		s.Close()
		got, _ := header.Load().(string)
		if err != nil || !strings.Contains(got, tc.want) || tc.want == "" && got != "" || strings.Contains(got, "CANARY") {
			t.Errorf("%s: %q, %v", tc.name, got, err)
		}
	}
}

// The token of a service account is read again when the role's keys are over.
func TestWebIdentity(t *testing.T) {
	for _, k := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_REGION", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(k, "") // the library looks here first
	}
	srv := start(t)
	srv.put(t, "m/x.gguf", make([]byte, 10))
	var tokens atomic.Value
	tokens.Store("")
	var until atomic.Value
	until.Store("2099-01-01T00:00:00Z")
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		token := r.Form.Get("WebIdentityToken")
		tokens.Store(tokens.Load().(string) + token + " ")
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>KEY%s</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, token, until.Load())
	}))
	defer sts.Close()
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	var header atomic.Value
	srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
		header.Store(r.Header.Get("Authorization"))
		return false
	})
	s := s3.New(s3.Options{Getenv: srv.env("AWS_ACCESS_KEY_ID", "", "AWS_SHARED_CREDENTIALS_FILE", file+".none",
		"AWS_CONFIG_FILE", file+".none", "AWS_EC2_METADATA_DISABLED", "true", "AWS_WEB_IDENTITY_TOKEN_FILE",
		file, "AWS_ROLE_ARN", "arn:aws:iam::1:role/r", "AWS_ENDPOINT_URL_STS", sts.URL)})
	defer s.Close()
	for range 2 {
		if _, err := s.Plan(t.Context(), "s3://"+bucket+"/m", nil); err != nil ||
			!strings.Contains(header.Load().(string), "Credential=KEYone/") {
			t.Fatalf("%v with %v", err, header.Load())
		}
	}
	write("two")
	if err := s.Refresh(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Plan(t.Context(), "s3://"+bucket+"/m", nil); err != nil || !strings.Contains(header.Load().(string), "Credential=KEYtwo/") {
		t.Fatalf("%v with %v", err, header.Load())
	}
	if got := tokens.Load(); got != "one two " {
		t.Errorf("tokens shown: %q", got)
	}
	write("three")
	until.Store("2020-01-01T00:00:00Z") // keys that are over are not used again
	if err := s.Refresh(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	tokens.Store("")
	for range 2 {
		if _, err := s.Plan(t.Context(), "s3://"+bucket+"/m", nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := tokens.Load().(string); strings.Count(got, "three ") < 2 {
		t.Errorf("tokens shown for keys that are over: %q", got)
	}
}

func TestEncodings(t *testing.T) {
	body := []byte("0123456789")
	sourcetest.RunEncodings(t, body, func(t *testing.T, encoding string) (sourcetest.Source, string) {
		srv := start(t)
		srv.put(t, "m/x.gguf", body)
		srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "x.gguf") {
				w.Header().Set("Content-Encoding", encoding)
			}
			return false
		})
		s := s3.New(s3.Options{Getenv: srv.env()})
		t.Cleanup(s.Close)
		return s, "s3://" + bucket + "/m"
	})
}

func TestOneFile(t *testing.T) {
	srv := start(t)
	srv.put(t, "m/x.gguf", []byte("0123456789"))
	srv.put(t, "m/y.gguf", []byte("0123456789"))
	for _, key := range []string{"m/churn", "m/churn-logs", "m/churn-report/a.json", "m/lab/config.json", "m/lab-hf/config.json", "m/empty"} {
		srv.put(t, key, []byte(strings.Repeat("x", len(strings.TrimPrefix(key, "m/empty")))))
	}
	s := s3.New(s3.Options{Getenv: srv.env()})
	defer s.Close()
	for at, want := range map[string]string{"churn": "churn", "lab": "config.json", "lab/": "config.json", "la": "", "empty": ""} {
		plan, err := s.Plan(t.Context(), "s3://"+bucket+"/m/"+at, nil)
		if want == "" && source.KindOf(err) != source.NotFound || want != "" && (len(plan.Files) != 1 || plan.Files[0].Name != want) {
			t.Errorf("%s: %+v, %v", at, plan.Files, err)
		}
	}
	plan, err := s.Plan(t.Context(), "s3://"+bucket+"/m/x.gguf", nil)
	if err != nil || len(plan.Files) != 1 || plan.Files[0].Name != "x.gguf" || plan.Files[0].Size != 10 {
		t.Fatalf("%+v, %v", plan, err)
	}
	r, err := s.Read(t.Context(), plan.Files[0], 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); string(got) != "3456" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
