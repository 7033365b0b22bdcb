package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// TestBlobCredentials: a model is pulled and started from a blob server that checks
// signatures, with a key and with a SAS, whether or not the server has checksums of
// ranges.
func TestBlobCredentials(t *testing.T) {
	for _, tc := range []struct {
		name   string
		sas    bool
		refuse func(w http.ResponseWriter) // the answer to a request for a checksum
	}{
		{name: "key"},
		{name: "SAS", sas: true},
		{name: "key, strict Azurite", refuse: func(w http.ResponseWriter) { azuretest.Fail(w, 500, "FeatureNotSupported") }},
		{name: "SAS, older service", sas: true, refuse: func(w http.ResponseWriter) { azuretest.Fail(w, 400, "UnsupportedHeader") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			blobs := startBlobServer(t)
			if tc.sas {
				t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint="+blobs.URL+"/"+azuretest.Account+";SharedAccessSignature="+azuretest.SAS)
			}
			blobs.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool {
				if tc.refuse == nil || r.Header.Get("X-Ms-Range-Get-Content-Crc64") == "" {
					return false
				}
				tc.refuse(w)
				return true
			})
			pullAndStart(t, azuretest.Location("tiny"))
			if blobs.Checksums() == 0 {
				t.Error("no range came with its checksum")
			}
		})
	}
}

// TestAzurite does the same with Azurite in its default strict mode.
func TestAzurite(t *testing.T) {
	endpoint := azuretest.StartAzurite(t, os.Getenv("THAW_AZURITE"))
	c, sas := azuretest.AzuriteContainer(t, endpoint, "weights")
	eachTinyFile(t, func(name string, body []byte) {
		if _, err := c.NewBlockBlobClient(name).UploadBuffer(t.Context(), body, nil); err != nil {
			t.Fatal(err)
		}
	})
	for name, credential := range map[string]string{"key": "AccountKey=" + azuretest.AzuriteKey, "SAS": "SharedAccessSignature=" + sas} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName="+azuretest.AzuriteAccount+";BlobEndpoint="+endpoint+";"+credential)
			pullAndStart(t, "az://"+azuretest.AzuriteAccount+"/weights/tiny")
		})
	}
}

// pullAndStart pulls the tiny model from source into a store of its own, and starts it
// cold from the source.
func pullAndStart(t *testing.T, source string) {
	t.Helper()
	out, errs, code := verb(t, "pull", source, "--data", filepath.Join(t.TempDir(), "data"))
	if code != 0 {
		t.Fatalf("pull: exit %d\n%s%s", code, out, errs)
	}
	for _, name := range []string{"config.json", "model.safetensors"} {
		got, err := os.ReadFile(filepath.Join(lastLine(out), name))
		want, _ := os.ReadFile(filepath.Join(tinyDir(t), name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, or other bytes", name, err)
		}
	}
	p := start(t, map[string]string{"m.yaml": modelFile("m", "  source: "+source+"\n  engine: ember\n")})
	if r := p.chat("m", ""); r.status != 200 || r.text() == "" {
		t.Errorf("cold start: %d %s", r.status, r.body)
	}
	p.stop()
}
