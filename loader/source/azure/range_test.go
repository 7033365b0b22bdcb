package azure_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/testkit/azuretest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// credentials are the ways to name a credential of the server's account.
func credentials(url string) []credential {
	account := url + "/" + azuretest.Account
	return []credential{
		{name: "connection string with a key", env: map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;AccountName=" + azuretest.Account + ";AccountKey=" + azuretest.Key + ";BlobEndpoint=" + account + "/;"}, key: true},
		{name: "connection string with a SAS", env: map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=" + account + ";SharedAccessSignature=" + azuretest.SAS}},
		{name: "connection string with a key and a SAS", env: map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=" + account + ";AccountName=" + azuretest.Account + ";SharedAccessSignature=?" + azuretest.SAS + ";AccountKey=" + azuretest.Key}, key: true},
		{name: "account and key", endpoint: account, env: map[string]string{"AZURE_STORAGE_ACCOUNT": azuretest.Account, "AZURE_STORAGE_KEY": azuretest.Key}, key: true},
		{name: "account, key and SAS", endpoint: account, env: map[string]string{"AZURE_STORAGE_ACCOUNT": azuretest.Account, "AZURE_STORAGE_KEY": azuretest.Key, "AZURE_STORAGE_SAS_TOKEN": azuretest.SAS}, key: true},
		{name: "SAS with a bare plus", endpoint: account, env: map[string]string{"AZURE_STORAGE_ACCOUNT": azuretest.Account,
			"AZURE_STORAGE_SAS_TOKEN": strings.NewReplacer("%2B", "+", "%2F", "/", "%3D", "=").Replace(azuretest.SAS)}},
		{name: "account and SAS", endpoint: account, env: map[string]string{"AZURE_STORAGE_ACCOUNT": azuretest.Account, "AZURE_STORAGE_SAS_TOKEN": "?" + azuretest.SAS}},
	}
}

type credential struct {
	name     string
	endpoint string // where the environment cannot name the server
	env      map[string]string
	key      bool // requests are signed with the account's key
}

func (c credential) source(t *testing.T) *azure.Source {
	s := azure.New(azure.Options{Endpoint: c.endpoint, Getenv: func(k string) string { return c.env[k] }})
	t.Cleanup(s.Close)
	return s
}

// Every way of reading is accepted by a server that checks the signature, with every
// kind of credential, and a range is compared with its checksum.
func TestSignatures(t *testing.T) {
	srv := azuretest.New(t)
	body := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	const name = "odd näme+%41&=.gguf"
	srv.Put("m/"+name, body)
	for _, c := range credentials(srv.URL) {
		t.Run(c.name, func(t *testing.T) {
			srv.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool {
				if signed := strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey "); signed != c.key {
					t.Errorf("Authorization %.10q", r.Header.Get("Authorization"))
				}
				return false
			})
			s := c.source(t)
			plan, err := s.Plan(t.Context(), azuretest.Location("m"), nil)
			if err != nil {
				t.Fatal(err)
			}
			f := plan.Files[0]
			if single, err := s.Plan(t.Context(), azuretest.Location("m/"+name), nil); err != nil || single.Files[0].Version != f.Version {
				t.Errorf("one blob: %+v, %v", single, err)
			}
			r, err := s.Read(t.Context(), f, 3, 1000)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			r.Close()
			if err != nil || !bytes.Equal(got, body[3:1003]) {
				t.Errorf("Read: %d bytes, %v", len(got), err)
			}
			if n := srv.Checksums(); n != 0 {
				t.Errorf("Read asked for %d checksums", n)
			}
			for i, length := range []int{1, 4 << 20, 4<<20 + 1} {
				got := make([]byte, length)
				if err := s.ReadInto(t.Context(), f, 7, got); err != nil || !bytes.Equal(got, body[7:7+length]) {
					t.Errorf("ReadInto of %d bytes: %v", length, err)
				}
				if n, want := srv.Checksums(), min(i+1, 2); n != want {
					t.Errorf("%d checksums after %d bytes, want %d", n, length, want)
				}
			}
		})
	}
}

// A service that refuses the header of the checksum is asked once more, and after that
// without it.
func TestRefusedChecksum(t *testing.T) {
	for _, tc := range []struct {
		name   string
		refuse func(w http.ResponseWriter)
	}{
		{"FeatureNotSupported", func(w http.ResponseWriter) { azuretest.Fail(w, 500, "FeatureNotSupported") }},
		{"UnsupportedHeader", func(w http.ResponseWriter) { azuretest.Fail(w, 400, "UnsupportedHeader") }},
		{"not implemented", func(w http.ResponseWriter) { azuretest.Fail(w, 501, "FeatureNotSupported") }},
		{"code in the body alone", func(w http.ResponseWriter) {
			w.WriteHeader(400)
			fmt.Fprint(w, "<Error><Code>UnsupportedHeader</Code><Message>no</Message></Error>")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := azuretest.New(t)
			srv.Put("m/x.gguf", []byte("0123456789"))
			srv.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool {
				if r.Header.Get("X-Ms-Range-Get-Content-Crc64") == "" {
					return false
				}
				tc.refuse(w)
				return true
			})
			s := azure.New(azure.Options{Getenv: srv.Getenv})
			defer s.Close()
			for _, prefix := range []string{"m", "m/x.gguf"} {
				plan, err := s.Plan(t.Context(), azuretest.Location(prefix), nil)
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 4)
				if err := s.ReadInto(t.Context(), plan.Files[0], 2, got); err != nil || string(got) != "2345" {
					t.Errorf("%q, %v", got, err)
				}
				// What an endpoint supports is remembered when credentials are dropped.
				if err := s.Refresh(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
			}
			if gets, sums := len(srv.Gets()), srv.Checksums(); gets != 3 || sums != 1 {
				t.Errorf("%d ranges asked for, %d with a checksum; want 3 and 1", gets, sums)
			}
		})
	}
}

// Refusals of other kinds are not taken for a refusal of the header: they are not asked
// again, and their messages reach the user without secrets.
func TestRefusedRanges(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	for _, tc := range []struct {
		name         string
		status       int
		code         string
		message      string
		kind         source.Kind
		gets         int
		text, absent string
	}{
		{"403", 403, "AuthorizationFailure", "This request is not authorized.", source.Denied, 1, "AZURE_STORAGE_CONNECTION_STRING: This request is not authorized (where the account's firewall names networks, add this machine's; else check that the key", "RequestId"},
		{"API version", 400, "InvalidHeaderValue", `The API version X is not supported by Azurite. Use "--skipApiVersionCheck".`, source.Refused, 1, `400 "InvalidHeaderValue": The API version X is not supported by Azurite. Use "--skipApiVersionCheck" (`, ""},
		{"never supported", 500, "FeatureNotSupported", "range header or parameter is not supported in strict mode", source.Refused, 2, "not supported in strict mode (", ""},
		{"throttled", 503, "ServerBusy", "Ingress is over the account limit.", source.Unavailable, 1, "over the account limit", ""},
		{"secret", 403, "AuthenticationFailed", "SECRET differs", source.Denied, 1, "check that the key", "differs"},
		{"SAS", 403, "AuthenticationFailed", "https://a/b?sig=differs", source.Denied, 1, "check that the key", "differs"},
		{"long", 409, "X", long, source.Refused, 1, `409 "X": ä`, strings.Repeat("ä", 260)},
		{"control characters", 409, "X", "a\x1b[31m\tb", source.Refused, 1, `a`, "\x1b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := azuretest.New(t)
			srv.Put("m/x.gguf", []byte("0123456789"))
			s := azure.New(azure.Options{Getenv: srv.Getenv})
			defer s.Close()
			plan, err := s.Plan(t.Context(), azuretest.Location("m"), nil)
			if err != nil {
				t.Fatal(err)
			}
			srv.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool {
				_, signature, _ := strings.Cut(r.Header.Get("Authorization"), ":")
				azuretest.Refuse(w, tc.status, tc.code, strings.ReplaceAll(tc.message, "SECRET", signature), "string to sign: "+signature)
				return true
			})
			err = s.ReadInto(t.Context(), plan.Files[0], 2, make([]byte, 4))
			if source.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.text) ||
				tc.absent != "" && strings.Contains(err.Error(), tc.absent) {
				t.Errorf("error %v", err)
			}
			if n := len(srv.Gets()); n != tc.gets {
				t.Errorf("asked %d times, want %d", n, tc.gets)
			}
			srv.Fault(nil)
			if err := s.ReadInto(t.Context(), plan.Files[0], 2, make([]byte, 4)); err != nil || srv.Checksums() != 1 {
				t.Errorf("afterwards: %v, %d checksums", err, srv.Checksums())
			}
		})
	}
}

// A key or a SAS goes to its own account alone, and an error names the variable that was
// left out.
func TestCredentialsOfOtherAccounts(t *testing.T) {
	t.Setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential") // no other identity is looked for
	for _, name := range []string{"AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"} {
		t.Setenv(name, "")
	}
	const endpoint = "AZURE_STORAGE_CONNECTION_STRING"
	for _, tc := range []struct {
		name, location string
		env            map[string]string
		want           []string // in the error; the server is asked where it is empty
	}{
		{"SAS without an account", azuretest.Location("m"), map[string]string{"AZURE_STORAGE_SAS_TOKEN": azuretest.SAS}, []string{"AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT=" + azuretest.Account}},
		{"SAS of another account", azuretest.Location("m"), map[string]string{"AZURE_STORAGE_SAS_TOKEN": azuretest.SAS, "AZURE_STORAGE_ACCOUNT": "otheraccount"}, []string{"AZURE_STORAGE_SAS_TOKEN: not used"}},
		{"key of another account", azuretest.Location("m"), map[string]string{"AZURE_STORAGE_KEY": azuretest.Key, "AZURE_STORAGE_ACCOUNT": "otheraccount"}, []string{"AZURE_STORAGE_KEY: not used"}},
		{"key without an account", azuretest.Location("m"), map[string]string{"AZURE_STORAGE_KEY": azuretest.Key}, []string{"AZURE_STORAGE_KEY: not used"}},
		{"connection string of another account", azuretest.Location("m"), map[string]string{endpoint: "AccountName=otheraccount;BlobEndpoint=URL;SharedAccessSignature=" + azuretest.SAS}, []string{endpoint + ": not used"}},
		{"another account by the endpoint's path", "az://otheraccount/weights/m", map[string]string{endpoint: "BlobEndpoint=URL/" + azuretest.Account + ";SharedAccessSignature=" + azuretest.SAS}, []string{endpoint + ": not used"}},
		{"SAS of a custom domain", azuretest.Location("m"), map[string]string{endpoint: "BlobEndpoint=URL;SharedAccessSignature=" + azuretest.SAS}, []string{endpoint, "AccountName=" + azuretest.Account}},
		{"SAS of a custom domain, other account", azuretest.Location("m"), map[string]string{endpoint: "BlobEndpoint=URL;SharedAccessSignature=" + azuretest.SAS, "AZURE_STORAGE_ACCOUNT": "otheraccount"}, []string{endpoint + ": not used"}},
		{"SAS of a custom domain, this account", azuretest.Location("m"), map[string]string{endpoint: "BlobEndpoint=URL/" + azuretest.Account + "/;SharedAccessSignature=" + azuretest.SAS, "AZURE_STORAGE_ACCOUNT": azuretest.Account}, nil},
		{"connection string of another account, SAS of this one", azuretest.Location("m"), map[string]string{endpoint: "AccountName=otheraccount;BlobEndpoint=URL;AccountKey=" + azuretest.Key, "AZURE_STORAGE_ACCOUNT": azuretest.Account, "AZURE_STORAGE_SAS_TOKEN": azuretest.SAS}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := azuretest.Of("") // with TLS, without which no token is sent
			listener := httptest.NewTLSServer(srv)
			defer listener.Close()
			srv.URL = listener.URL
			roots := x509.NewCertPool()
			roots.AddCert(listener.Certificate())
			srv.Put("m/x.gguf", []byte("0123456789"))
			requests := 0
			srv.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool { requests++; return false })
			s := azure.New(azure.Options{Roots: roots, Endpoint: srv.URL + "/" + azuretest.Account,
				Getenv: func(k string) string { return strings.ReplaceAll(tc.env[k], "URL", srv.URL) }})
			defer s.Close()
			_, err := s.Plan(t.Context(), tc.location, nil)
			if tc.want == nil {
				if err != nil || requests == 0 {
					t.Errorf("%d requests, %v", requests, err)
				}
				return
			}
			if source.KindOf(err) != source.Denied || requests != 0 {
				t.Fatalf("%d requests, %v", requests, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
			if text := err.Error(); strings.Contains(text, "sig=") || strings.Contains(text, azuretest.Key) {
				t.Errorf("a secret is in %q", text)
			}
		})
	}
}

func TestEncodings(t *testing.T) {
	body := []byte("0123456789")
	sourcetest.RunEncodings(t, body, func(t *testing.T, encoding string) (sourcetest.Source, string) {
		srv := azuretest.New(t)
		srv.PutAs("m/x.gguf", body, nil, encoding)
		s := azure.New(azure.Options{Getenv: srv.Getenv})
		t.Cleanup(s.Close)
		return s, azuretest.Location("m")
	})
}
