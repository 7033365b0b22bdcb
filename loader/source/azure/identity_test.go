package azure_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// TestRefusedIdentity: what the endpoint of a machine's identities says is in the error, and what
// the others lack.
func TestRefusedIdentity(t *testing.T) {
	for answer, want := range map[string]string{
		`{"error":"invalid_request","error_description":"Multiple user assigned identities exist, please specify the clientId / resourceId"}`: " answered 400: Multiple user assigned identities exist, please specify the clientId / resourceId (set AZURE",
		"Failed to look up the identity\nat node x": " answered 400: Failed to look up the identity (set AZURE",
		"": " answered 400 (set AZURE", "of CANARY": " answered 400 (set AZURE", "<html>": " answered 400 (set AZURE",
	} {
		endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, answer)
		}))
		defer endpoint.Close()
		for k, v := range map[string]string{"IDENTITY_ENDPOINT": endpoint.URL, "IDENTITY_HEADER": "CANARY", "AZURE_CLIENT_ID": "", "AZURE_TENANT_ID": "", "AZURE_FEDERATED_TOKEN_FILE": "", "PATH": t.TempDir()} {
			if t.Setenv(k, v); v == "" {
				os.Unsetenv(k)
			}
		}
		s := azure.New(azure.Options{Getenv: func(string) string { return "" }})
		defer s.Close()
		_, err := s.Plan(t.Context(), "az://account1/weights/m", nil)
		for _, want := range []string{`prefix "m": EnvironmentCredential: missing environment variable AZURE_TENANT_ID; WorkloadIdentityCredential: no client ID`,
			"ManagedIdentityCredential authentication failed: " + endpoint.Listener.Addr().String() + want, "AZURE_CLIENT_ID names one"} {
			if source.KindOf(err) != source.Denied || !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nlacks %s", err, want)
			}
		}
		if strings.Contains(err.Error(), "CANARY") {
			t.Error(err)
		}
	}
}

// A pod's federated token becomes a token of the directory, and is read again
// when the service does not take what was made of it.
func TestWorkloadIdentity(t *testing.T) {
	var mu sync.Mutex // guards the fields below
	accepted, assertions := "bearer-of-one", []string(nil)
	authority := httptest.NewUnstartedServer(nil)
	authority.Config.ErrorLog = log.New(io.Discard, "", 0)
	authority.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	authority.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/.well-known/openid-configuration") {
			at := authority.URL + "/" + strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")[0]
			fmt.Fprintf(w, `{"token_endpoint":"%s/oauth2/v2.0/token","authorization_endpoint":"%s/oauth2/v2.0/authorize","issuer":"%s/v2.0"}`, at, at, at)
			return
		}
		_ = r.ParseForm()
		assertion := r.PostForm.Get("client_assertion")
		mu.Lock()
		assertions = append(assertions, assertion)
		mu.Unlock()
		if r.PostForm.Get("client_id") != "client" || !strings.Contains(r.PostForm.Get("scope"), "https://storage.azure.com/.default") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `{"token_type":"Bearer","expires_in":3600,"access_token":"bearer-of-%s"}`, assertion)
	})
	authority.StartTLS()
	defer authority.Close()
	body := []byte("0123456789")
	// An account's host is Azure's; a request for it ends here.
	account := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		ok := r.Header.Get("Authorization") == "Bearer "+accepted
		mu.Unlock()
		switch {
		case !ok:
			azuretest.Fail(w, http.StatusUnauthorized, "InvalidAuthenticationInfo")
		case r.URL.Query().Get("comp") == "list":
			fmt.Fprint(w, `<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs><Blob><Name>m/x.gguf</Name><Properties><Etag>0x1</Etag><Content-Length>10</Content-Length></Properties></Blob></Blobs><NextMarker /></EnumerationResults>`)
		default:
			w.Header().Set("ETag", `"0x1"`)
			w.Header().Set("Content-Range", "bytes 2-5/10")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(body[2:6])
		}
	}))
	account.Config.ErrorLog = log.New(io.Discard, "", 0)
	account.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	account.StartTLS()
	defer account.Close()

	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	for k, v := range map[string]string{"AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "11111111-2222-3333-4444-555555555555", "AZURE_FEDERATED_TOKEN_FILE": file, "AZURE_AUTHORITY_HOST": authority.URL + "/", "AZURE_CLIENT_SECRET": "", "AZURE_CLIENT_CERTIFICATE_PATH": "", "AZURE_USERNAME": ""} {
		t.Setenv(k, v)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	roots.AddCert(account.Certificate())
	s := azure.New(azure.Options{Roots: roots, Endpoint: account.URL, Getenv: func(k string) string {
		if strings.HasPrefix(k, "AZURE_STORAGE") {
			return ""
		}
		return os.Getenv(k)
	}})
	defer s.Close()
	plan, err := s.Plan(t.Context(), "az://account/weights/m", nil)
	if err != nil {
		t.Fatal(err)
	}
	read := func() error {
		got := make([]byte, 4)
		err := s.ReadInto(t.Context(), plan.Files[0], 2, got)
		if err == nil && string(got) != "2345" {
			t.Errorf("%q", got)
		}
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	accepted = "bearer-of-two"
	mu.Unlock()
	write("two")
	if err := read(); source.KindOf(err) != source.Denied || !strings.Contains(err.Error(), "Storage Blob Data Reader") ||
		strings.Contains(err.Error(), "bearer-of") {
		t.Errorf("with the old token: %v", err)
	}
	if err := s.Refresh(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if err := read(); err != nil {
		t.Errorf("with the new token: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(assertions) < 2 || assertions[0] != "one" || assertions[len(assertions)-1] != "two" {
		t.Errorf("assertions %q", assertions)
	}
}

// Where the service gives a checksum of a range, other bytes are found out.
func TestRangeChecksum(t *testing.T) {
	srv := azuretest.New(t)
	body := []byte("0123456789")
	srv.Put("m/x.gguf", body)
	s := azure.New(azure.Options{Getenv: srv.Getenv})
	defer s.Close()
	plan, err := s.Plan(t.Context(), azuretest.Location("m"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		sent string
		kind source.Kind
	}{{"2345", ""}, {"2346", source.Malformed}} {
		srv.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool {
			if r.Header.Get("X-Ms-Range-Get-Content-Crc64") != "true" {
				t.Error("no checksum asked for")
			}
			sum := binary.LittleEndian.AppendUint64(nil, crc64.Checksum(body[2:6], crc64.MakeTable(0x9A6C9329AC4BC9B5)))
			w.Header().Set("X-Ms-Content-Crc64", base64.StdEncoding.EncodeToString(sum))
			w.Header().Set("ETag", plan.Files[0].Version)
			w.Header().Set("Content-Range", "bytes 2-5/10")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, tc.sent)
			return true
		})
		if err := s.ReadInto(t.Context(), plan.Files[0], 2, make([]byte, 4)); source.KindOf(err) != tc.kind {
			t.Errorf("%s: %v", tc.sent, err)
		}
	}
}
