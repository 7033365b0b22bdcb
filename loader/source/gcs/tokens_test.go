package gcs

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/oauth2/google"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// TestTokenLifetime: a token is not used in the last minute of its life, which a request may
// take, nor for longer than an hour.
func TestTokenLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for lifetime, want := range map[time.Duration]time.Duration{
			0: 10 * time.Second, -time.Hour: 10 * time.Second, time.Minute: 10 * time.Second, 2 * time.Minute: time.Minute, 30 * time.Minute: 29 * time.Minute,
			61 * time.Minute: time.Hour, 5 * time.Hour: time.Hour,
		} {
			var k tokens
			if k.store("x", lifetime); time.Until(k.until) != want {
				t.Errorf("a token of %v is used for %v, want %v", lifetime, time.Until(k.until), want)
			}
		}
	})
}

// TestKindsOfCredentials: each kind of credentials file is taken.
func TestKindsOfCredentials(t *testing.T) {
	const user = `{"type":"authorized_user","client_id":"c","client_secret":"s","refresh_token":"r"}`
	const external = `"audience":"//iam.googleapis.com/x","subject_token_type":"urn:ietf:params:oauth:token-type:jwt",` +
		`"token_url":"https://sts.googleapis.com/v1/token","credential_source":{"file":"/none"}`
	files := map[google.CredentialsType]string{
		google.ServiceAccount:  `{"type":"service_account","client_email":"a@b","private_key":"x","token_uri":"https://x.example"}`,
		google.AuthorizedUser:  user,
		google.ExternalAccount: `{"type":"external_account",` + external + `}`,
		google.ExternalAccountAuthorizedUser: `{"type":"external_account_authorized_user","audience":"x","client_id":"c","client_secret":"s",` +
			`"refresh_token":"r","token_url":"https://sts.googleapis.com/v1/oauthtoken","token_info_url":"https://sts.googleapis.com/v1/introspect"}`,
		google.ImpersonatedServiceAccount: `{"type":"impersonated_service_account","service_account_impersonation_url":` +
			`"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b:generateAccessToken","source_credentials":` + user + `}`,
	}
	for kind, text := range files {
		name := filepath.Join(t.TempDir(), "key.json")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		k := newTokens(func(v string) string { return map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": name}[v] }, false, scopeRead)
		if err := k.findCredentials(); err != nil || k.file == nil {
			t.Errorf("%s: %v", kind, err)
		}
		k.close()
	}
}

// TestCredentialsThatGiveNone: what is wrong with the credentials is said, in the words of the
// server of tokens where there are some, and nothing of them is shown.
func TestCredentialsThatGiveNone(t *testing.T) {
	var answer string
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, answer, http.StatusBadRequest)
	}))
	defer tokens.Close()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := func(fields map[string]any) string {
		b, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	account := map[string]any{"type": "service_account", "client_email": "a@b", "token_uri": tokens.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))}
	outside := map[string]any{"type": "external_account", "audience": "//iam.googleapis.com/x", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"token_url": "https://sts.googleapis.com/v1/token", "credential_source": map[string]any{"file": "/none/token"}}
	folder := t.TempDir()
	for _, c := range []struct{ value, file, answer, want string }{
		{value: `{"type":"service_account","private_key":"CANARY"}`, want: "it holds the credentials themselves: write them to a file as JSON"},
		{value: "\n" + text(account), want: "it holds the credentials themselves"},
		{value: base64.StdEncoding.EncodeToString([]byte(text(account))), want: "it holds the credentials themselves"},
		{value: "/none/key.json", want: `"/none/key.json" cannot be read: no such file or directory`},
		{value: folder, want: "cannot be read: is a directory"},
		{file: "CANARY", want: "is not the JSON of credentials"},
		{file: base64.StdEncoding.EncodeToString([]byte(text(account))), want: "decode it where it is base64"},
		{file: "{\n\"type\":\"service_account\",\n\"private_key\":\"-----BEGIN\nCANARY\"}", want: "(line 3: invalid character '\\n' in string): decode it where it is base64; line ends within private_key are written \\n"},
		{file: `{"type":7}`, want: "keys of another type"},
		{file: `{"installed":{"client_id":"x","client_secret":"CANARY"}}`, want: "is of an OAuth client"},
		{file: `{"web":{"client_id":"x","client_secret":"CANARY"}}`, want: "is of an OAuth client"},
		{file: `{"client_email":"a@b"}`, want: `has the type "", which is none of ["service_account" "authorized_user"`},
		{file: `{"type":"gdch_service_account"}`, want: `has the type "gdch_service_account", which is none of`},
		{file: `{"type":"impersonated_service_account","x":"CANARY"}`, want: "of type impersonated_service_account is not complete: missing 'source_credentials' field"},
		{file: `{"type":"service_account","client_email":"a@b","private_key":"CANARY","token_uri":"https://x.example"}`, want: "the private key is malformed"},
		{file: text(account), answer: `{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values."}`,
			want: "Token must be a short-lived token (60 minutes)"},
		{file: text(account), answer: `{"error":"invalid_grant"}`, want: "invalid_grant"},
		{file: text(account), answer: "<html>", want: "the server of tokens answered 400"},
		{file: text(outside), want: `failed to open credential file "/none/token"`},
	} {
		answer = c.answer
		if c.file != "" {
			c.value = filepath.Join(folder, "key.json")
			if err := os.WriteFile(c.value, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		k := newTokens(func(v string) string { return map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": c.value}[v] }, false, scopeRead)
		if _, err := k.get(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "CANARY") ||
			strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%.60s%.60s: %v\nlacks %s", c.value, c.file, err, c.want)
		}
		k.close()
	}
}

// TestMetadataConnections: nothing stays open to the metadata server, whatever it answers; a
// token is used for its life, and a caller that has left gets none.
func TestMetadataConnections(t *testing.T) {
	for answer, want := range map[string]time.Duration{`{"access_token":"t","expires_in":3600}`: 59 * time.Minute, `{"access_token":"t","expires_in":120}`: time.Minute, "": 0, "<html>": 0} {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(answer, "{") {
				w.Header().Set("Metadata-Flavor", "Google")
			}
			fmt.Fprint(w, answer+strings.Repeat(" ", 100<<10))
		}))
		conns := sourcetest.CountConnections(srv)
		srv.Start()
		k := newTokens(func(v string) string {
			return map[string]string{"GCE_METADATA_HOST": strings.TrimPrefix(srv.URL, "http://")}[v]
		}, false, scopeRead)
		ctx, cancel := context.WithCancelCause(t.Context())
		over := errors.New("over")
		cancel(over)
		if token, err := k.get(ctx); token != "" || err != over {
			t.Errorf("of a caller that left: %q, %v", token, err)
		}
		before := time.Now()
		token, err := k.get(t.Context())
		if err != nil || (token != "") != (want > 0) || k.until.Before(before.Add(want)) && want > 0 || k.until.After(time.Now().Add(want)) {
			t.Errorf("%s: %q until %v, %v", answer, token, k.until, err)
		}
		conns.CheckClosed(t, closer(k.close))
		srv.Close()
	}
}

type closer func()

func (c closer) Close() { c() }

// TestWhoIsRefused: the error of a refusal names what was shown for the request that was
// refused, and the cause of a caller that left is its own.
func TestWhoIsRefused(t *testing.T) {
	machine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		fmt.Fprint(w, `{"access_token":"t","expires_in":3600}`)
	}))
	defer machine.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer srv.Close()
	open := func() *Source {
		env := map[string]string{"STORAGE_EMULATOR_HOST": srv.URL, "GCE_METADATA_HOST": strings.TrimPrefix(machine.URL, "http://")}
		s := New(Options{Getenv: func(name string) string { return env[name] }, Identity: true})
		t.Cleanup(s.Close)
		return s
	}
	calls := map[string]func(ctx context.Context, s *Source) error{
		"plan": func(ctx context.Context, s *Source) error {
			_, err := s.Plan(ctx, "gs://bucket/a", nil)
			return err
		},
		"plan of a file": func(ctx context.Context, s *Source) error {
			_, err := s.Plan(ctx, "gs://bucket/a.gguf", nil)
			return err
		},
		"read": func(ctx context.Context, s *Source) error {
			_, err := s.Read(ctx, source.File{Name: "x", Ref: "bucket|a/x", Version: "1"}, 0, 1)
			return err
		},
		"write": func(ctx context.Context, s *Source) error {
			return s.Write(ctx, "gs://bucket/a", "x", strings.NewReader("x"), 1)
		},
	}
	for name, call := range calls {
		if err := call(t.Context(), open()); source.KindOf(err) != source.Denied ||
			!strings.Contains(err.Error(), "403, with the identity of this machine (") {
			t.Errorf("%s: %v", name, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		over := errors.New("over")
		cancel(over)
		if err := call(ctx, open()); err != over {
			t.Errorf("%s of a caller that left: %v", name, err)
		}
	}
}

// TestEncodedObjects: a compressed object is an error only where it is staged.
func TestEncodedObjects(t *testing.T) {
	p, err := parse("gs://bucket/a")
	if err != nil {
		t.Fatal(err)
	}
	o := object{Name: "a/x.bin", Size: "5", Generation: "7", ContentEncoding: "gzip"}
	for pattern, want := range map[string]source.Kind{"": "", "*.bin": source.Corrupt, "*.txt": ""} {
		if f, err := fileOf(p, o, source.Globs{pattern}); source.KindOf(err) != want || want == "" && f.Name != "a/x.bin" {
			t.Errorf("%q: %+v, %v", pattern, f, err)
		}
	}
}

// TestFixesByType: credentials that give no token are named with their file, and with what helps
// for their type.
func TestFixesByType(t *testing.T) {
	tokens := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`, http.StatusBadRequest)
	}))
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	account := map[string]any{"type": "service_account", "client_email": "a@b", "token_uri": tokens.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))}
	for _, c := range []struct {
		file map[string]any
		want string
	}{
		{account, "service_account): Invalid JWT Signature (the key may be deleted, or this machine's clock wrong"},
		{map[string]any{"type": "impersonated_service_account", "source_credentials": account,
			"service_account_impersonation_url": tokens.URL + "/v1/projects/-/serviceAccounts/a@b:generateAccessToken"},
			"impersonated_service_account): Invalid JWT Signature (give the account that impersonates the role Service Account Token Creator"},
	} {
		b, err := json.Marshal(c.file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "key.json")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := New(Options{Getenv: func(v string) string { return map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": name}[v] }})
		t.Cleanup(s.Close)
		_, err = s.Plan(t.Context(), "gs://bucket/a", nil)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), fmt.Sprintf("GOOGLE_APPLICATION_CREDENTIALS (%q, of type", name)) {
			t.Errorf("%v\nlacks %s", err, c.want)
		}
	}
	for kind, want := range map[google.CredentialsType]string{google.AuthorizedUser: "gcloud auth application-default login", google.ExternalAccount: "Workload Identity User"} {
		if !strings.Contains(typeFixes[kind], want) {
			t.Errorf("%s: %s", kind, typeFixes[kind])
		}
	}
}
