package loader_test

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
)

func TestLocate(t *testing.T) {
	for _, tc := range []struct{ src, scheme, location string }{
		{"./tiny", "file", "file:///models/tiny"},
		{"tiny/", "file", "file:///models/tiny"},
		{"../x", "file", "file:///x"},
		{"/abs/x", "file", "file:///abs/x"},
		{"file:///abs/x/", "file", "file:///abs/x"},
		{"file:///a%20b", "file", "file:///a b"},
		{"az://acc/c/p/", "az", "az://acc/c/p"},
		{"https://acc.blob.core.windows.net/c/p", "az", "https://acc.blob.core.windows.net/c/p"},
		{"https://acc.z12.blob.storage.azure.net/c/p/", "az", "https://acc.z12.blob.storage.azure.net/c/p"},
		{"https://models.example.org/tiny/", "https", "https://models.example.org/tiny"},
		{"https://huggingface.co/org/repo", "hf", "hf://org/repo"},
		{"https://huggingface.co/org/repo/tree/v1", "hf", "hf://org/repo@v1"},
		{"https://huggingface.co/org/repo/tree/main/sub/folder", "hf", "hf://org/repo@main/sub/folder"},
		{"https://huggingface.co/org/repo/blob/main/m-Q4.gguf", "hf", "hf://org/repo@main/m-Q4.gguf"},
		{"https://hf.co/org/repo/resolve/main/m-Q4.gguf", "hf", "hf://org/repo@main/m-Q4.gguf"},
		{"https://acc.dfs.core.windows.net/c/p", "az", "https://acc.blob.core.windows.net/c/p"},
		{"s3://bucket/a/b/", "s3", "s3://bucket/a/b"},
		{"gs://bucket/a", "gs", "gs://bucket/a"},
		{"hf://org/repo@main", "hf", "hf://org/repo@main"},
	} {
		scheme, location, err := loader.Locate(tc.src, "/models")
		if err != nil || scheme != tc.scheme || location != tc.location {
			t.Errorf("%s: %s %s %v", tc.src, scheme, location, err)
		}
	}
	for _, bad := range []string{"", "~/x", "file://host/x", "file:x", "file:///x?a", "az://a/c?sig=CANARY", "https://u:CANARY@h/x", "AZ://a/c", "a\nb", "://x", "s3:bucket/x", "huggingface.co/org/repo"} {
		if _, _, err := loader.Locate(bad, "/models"); source.KindOf(err) != source.BadSource || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, _, err := loader.Locate("./x", ""); source.KindOf(err) != source.BadSource {
		t.Errorf("relative without a base: %v", err)
	}
	// The folder of a model file on another node makes its paths that node's.
	remote := loader.PeerLocation("gpu-1", "/models/a b")
	for _, tc := range []struct{ src, scheme, location string }{
		{"./tiny", "peer", "peer://gpu-1/models/a%20b/tiny"},
		{"../x", "peer", "peer://gpu-1/models/x"},
		{"/abs/100%", "peer", "peer://gpu-1/abs/100%25"},
		{"file:///abs/x/", "peer", "peer://gpu-1/abs/x"},
		{"az://acc/c/p/", "az", "az://acc/c/p"},
		{"hf://org/repo", "hf", "hf://org/repo"},
	} {
		scheme, location, err := loader.Locate(tc.src, remote)
		if err != nil || scheme != tc.scheme || location != tc.location {
			t.Errorf("%s: %s %s %v", tc.src, scheme, location, err)
		}
	}
	if node, folder, ok := loader.ParsePeerLocation("peer://gpu-1/abs/100%25"); node != "gpu-1" || folder != "/abs/100%" || !ok {
		t.Error(node, folder, ok)
	}
	for _, bad := range []string{"", "file:///x", "peer://", "peer://n", "peer:///x", "peer://n/%2e%2e/x", "peer://n/a/../b", "peer://n/%zz"} {
		if node, folder, ok := loader.ParsePeerLocation(bad); ok {
			t.Error(bad, node, folder)
		}
	}
	if folder, ok, err := loader.Local("./x", "/m"); folder != "/m/x" || !ok || err != nil {
		t.Errorf("%s %v %v", folder, ok, err)
	}
	if _, ok, err := loader.Local("az://acc/c/p", ""); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
}

// TestLocateOtherSpellings: what other tools call a source is refused with the spelling here, also
// where a command line names it.
func TestLocateOtherSpellings(t *testing.T) {
	for src, want := range map[string]string{
		"abfss://c@acc.dfs.core.windows.net/p":  "did you mean az://acc/c/p?",
		"s3a://bucket/p":                        "did you mean s3://bucket/p?",
		"huggingface://o/r":                     "did you mean hf://o/r?",
		"hf://o/r:Q4_K_M":                       `did you mean hf://o/r, with weights: "*Q4_K_M*" beside it?`,
		"http://h/m":                            "use https://",
		"hf://datasets/o/r":                     "of the hub's repositories models are read",
		"s3://Bucket/m":                         "did you mean s3://bucket?",
		"https://huggingface.co/o/r/commit/abc": "did you mean hf://o/r@abc?",
	} {
		if _, _, err := loader.Locate(src, "/"); source.KindOf(err) != source.BadSource || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", src, err)
		}
	}
}
