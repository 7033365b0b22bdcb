package httpsource

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRoots: authorities in the files of the variables that other clients read are known, beside
// each other; a file that gives none is named once a certificate is not known.
func TestRoots(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	folder := t.TempDir()
	write := func(name string, b []byte) string {
		name = filepath.Join(folder, name)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	own := write("own.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	text := write("text.pem", []byte("no certificate"))
	for _, c := range []struct{ name, file, want string }{
		{"AWS_CA_BUNDLE", own, ""}, {"REQUESTS_CA_BUNDLE", own, ""}, {"CURL_CA_BUNDLE", own, ""},
		{"AWS_CA_BUNDLE", folder + "/none", `start thaw anew; AWS_CA_BUNDLE names "` + folder + `/none": no such file or directory)`},
		{"REQUESTS_CA_BUNDLE", folder, "is a directory"},
		{"CURL_CA_BUNDLE", text, `text.pem", which holds no certificate in PEM)`},
		{"SSL_CERT_FILE", folder + "/none", "SSL_CERT_FILE names"},
		{"", "", "in SSL_CERT_FILE, and start thaw anew)"},
	} {
		for _, name := range append([]string{"SSL_CERT_FILE"}, caVariables...) {
			if t.Setenv(name, ""); name == c.name {
				t.Setenv(name, c.file)
			}
		}
		client := Client(Options{})
		r, err := Send(t.Context(), client, http.MethodGet, srv.URL, "s", "", nil)
		if err == nil {
			Drain(r)
		}
		client.CloseIdleConnections()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v\nlacks %s", c.name, c.file, err, c.want)
		}
	}
}
