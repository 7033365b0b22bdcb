package inspect

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
	"github.com/thaw-dev/thaw/loader/source/huggingface"
	"github.com/thaw-dev/thaw/loader/source/web"
	"github.com/thaw-dev/thaw/testkit/azuretest"
	"github.com/thaw-dev/thaw/testkit/gcstest"
	"github.com/thaw-dev/thaw/testkit/huggingfacetest"
)

// TestSources: each kind of source is read by ranges, and pickles, which none of them
// stages, are seen in its listing.
func TestSources(t *testing.T) {
	// Large enough that a read of the whole would show.
	body := string(header(1<<20, "BF16", 2)) + strings.Repeat("\x00", 1<<20-256)
	files := map[string]string{configName: llama, "model.safetensors": body}
	pickled := map[string]string{configName: llama, "pytorch_model.bin": "x"}
	hub, blobs, objects := huggingfacetest.New(t), azuretest.New(t), gcstest.New(t)
	folder := t.TempDir()
	for below, set := range map[string]map[string]string{"m": files, "pickled": pickled} {
		if err := os.Mkdir(filepath.Join(folder, below), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, b := range set {
			hub.Commit(below, map[string][]byte{name: []byte(b)})
			blobs.Put(below+"/"+name, []byte(b))
			objects.Put(below+"/"+name, []byte(b), "")
			if err := os.WriteFile(filepath.Join(folder, below, name), []byte(b), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	pages := httptest.NewTLSServer(http.FileServer(http.Dir(folder)))
	t.Cleanup(pages.Close)
	roots := x509.NewCertPool()
	roots.AddCert(pages.Certificate())

	hf, az, gs := huggingface.New(huggingface.Options{Getenv: hub.Getenv}), azure.New(azure.Options{Getenv: blobs.Getenv}),
		gcs.New(gcs.Options{Getenv: objects.Getenv})
	https := web.New(web.Options{Roots: roots, Getenv: func(k string) string { return map[string]string{httpsource.HostsVariable: "127.0.0.1"}[k] }})
	for _, end := range []func(){hf.Close, az.Close, gs.Close, https.Close} {
		t.Cleanup(end)
	}
	o := Options{Sources: map[string]loader.Source{"hf": hf, "az": az, "gs": gs, "https": https}}
	repository := "hf://" + huggingfacetest.Org + "/" + huggingfacetest.Repo
	for good, bad := range map[string]string{
		repository + "@m":               repository + "@pickled",
		azuretest.Location("m"):         azuretest.Location("pickled"),
		"gs://" + gcstest.Bucket + "/m": "gs://" + gcstest.Bucket + "/pickled",
		pages.URL + "/m":                pages.URL + "/pickled",
	} {
		c, err := Read(t.Context(), good, o)
		if err != nil || c.Stored != 1<<20 || c.Architecture != "LlamaForCausalLM" || c.Location != good {
			t.Errorf("%s: %+v %v", good, c, err)
		}
		if _, err := Read(t.Context(), bad, o); source.KindOf(err) != source.Refused ||
			!strings.Contains(err.Error(), "has no weights but pytorch_model.bin: such files run code") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := Read(t.Context(), repository+"@nothing", o); source.KindOf(err) != source.NotFound {
		t.Error(err)
	}
}
