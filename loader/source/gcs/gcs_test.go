package gcs_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/testkit/gcstest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bucket = "gs://" + gcstest.Bucket

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
		srv := gcstest.New(t)
		srv.Put("elsewhere/config.json", nil, "")
		srv.Put("a/model/", nil, "")
		s := gcs.New(gcs.Options{Getenv: srv.Getenv})
		t.Cleanup(s.Close)
		return sourcetest.Location{
			Source: s, Location: bucket + "/a/model", Nowhere: bucket + "/a/mode",
			Put:    func(t *testing.T, name string, body []byte) { srv.Put("a/model/"+name, body, "") },
			Delete: func(t *testing.T, name string) { srv.Delete("a/model/" + name) },
		}
	})
}

func TestEncodings(t *testing.T) {
	body := []byte("0123456789")
	sourcetest.RunEncodings(t, body, func(t *testing.T, encoding string) (sourcetest.Source, string) {
		srv := gcstest.New(t)
		srv.Put("m/x.gguf", body, encoding)
		s := gcs.New(gcs.Options{Getenv: srv.Getenv})
		t.Cleanup(s.Close)
		return s, bucket + "/m"
	})
}

func TestErrors(t *testing.T) {
	srv := gcstest.New(t)
	srv.Put("m/model.safetensors", make([]byte, 100), "")
	s := gcs.New(gcs.Options{Getenv: srv.Getenv})
	defer s.Close()
	plan, err := s.Plan(t.Context(), bucket+"/m", nil)
	if err != nil || len(plan.Files[0].CRC32C) != 4 {
		t.Fatalf("%+v, %v", plan, err)
	}
	for _, tc := range []struct {
		status     int
		plan, read source.Kind
		wantText   string
	}{
		{401, source.Denied, source.Denied, "GOOGLE_APPLICATION_CREDENTIALS"},
		{403, source.Denied, source.Denied, "Storage Object Viewer"},
		{404, source.NotFound, source.Changed, "case-sensitive"},
		{412, source.Changed, source.Changed, ""},
		{429, source.Unavailable, source.Unavailable, ""},
		{503, source.Unavailable, source.Unavailable, ""},
	} {
		srv.Fault(func(w http.ResponseWriter, r *http.Request) bool { gcstest.Fail(w, tc.status, "why"); return true })
		_, perr := s.Plan(t.Context(), bucket+"/m", nil)
		_, rerr := s.Read(t.Context(), plan.Files[0], 0, 10)
		if source.KindOf(perr) != tc.plan || source.KindOf(rerr) != tc.read || !strings.Contains(perr.Error(), tc.wantText) ||
			!strings.Contains(perr.Error(), ": the reason") || strings.Contains(perr.Error()+rerr.Error(), "CANARY") {
			t.Errorf("%d: %v; %v", tc.status, perr, rerr)
		}
	}
	srv.Fault(nil)
	if _, err := s.Plan(t.Context(), "gs://no-such-bucket/z", nil); source.KindOf(err) != source.NotFound {
		t.Errorf("no bucket: %v", err)
	}
	for _, bad := range []string{"gs://", "gs://B/x", "gs://a..b/x", "gs://weights/../x", "gs://weights/x?a=CANARY", "s3://weights/x"} {
		if _, err := s.Plan(t.Context(), bad, nil); source.KindOf(err) != source.BadSource || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	one, err := s.Plan(t.Context(), bucket+"/m/model.safetensors", nil)
	if err != nil || len(one.Files) != 1 || one.Files[0].Name != "model.safetensors" {
		t.Errorf("one file: %+v, %v", one, err)
	}
}

// A service account's key, rotated while the source is in use.
func TestServiceAccount(t *testing.T) {
	srv := gcstest.New(t)
	srv.Put("m/x.gguf", make([]byte, 10), "")
	srv.Want("token-of-one")
	var asked atomic.Int64
	auth := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-of-%s","token_type":"Bearer","expires_in":3600}`, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	defer auth.Close()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.json")
	write := func(name string) {
		raw, _ := json.Marshal(map[string]string{"type": "service_account", "client_email": name + "@p.iam.gserviceaccount.com", "private_key_id": "1", "token_uri": auth.URL + "/" + name,
			"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))})
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	env := map[string]string{"STORAGE_EMULATOR_HOST": srv.URL, "GOOGLE_APPLICATION_CREDENTIALS": file}
	s := gcs.New(gcs.Options{Getenv: func(k string) string { return env[k] }})
	defer s.Close()
	for range 3 {
		if _, err := s.Plan(t.Context(), bucket+"/m", nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d tokens for three plans", n)
	}
	srv.Want("token-of-two")
	write("two")
	if _, err := s.Plan(t.Context(), bucket+"/m", nil); source.KindOf(err) != source.Denied {
		t.Errorf("with the old key: %v", err)
	}
	if err := s.Refresh(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Plan(t.Context(), bucket+"/m", nil); err != nil {
		t.Errorf("with the new key: %v", err)
	}
}

func TestMetadata(t *testing.T) {
	srv := gcstest.New(t)
	srv.Put("m/x.gguf", make([]byte, 10), "")
	srv.Want("token-of-machine")
	machine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		if r.Header.Get("Metadata-Flavor") != "Google" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"access_token":"token-of-machine","expires_in":3599,"token_type":"Bearer"}`)
	}))
	defer machine.Close()
	env := map[string]string{"STORAGE_EMULATOR_HOST": srv.URL, "GCE_METADATA_HOST": strings.TrimPrefix(machine.URL, "http://")}
	s := gcs.New(gcs.Options{Getenv: func(k string) string { return env[k] }, Identity: true})
	defer s.Close()
	if _, err := s.Plan(t.Context(), bucket+"/m", nil); err != nil {
		t.Error(err)
	}
}
