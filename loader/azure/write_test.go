package azure_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/thaw-dev/thaw/loader/azure"
	"github.com/thaw-dev/thaw/loader/source"
)

func TestAzuriteWrite(t *testing.T) {
	endpoint := azurite(t)
	cred, err := container.NewSharedKeyCredential(azuriteAccount, azuriteKey)
	if err != nil {
		t.Fatal(err)
	}
	c, err := container.NewClientWithSharedKeyCredential(endpoint+"/written", cred, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	with := func(key string) *azure.Source {
		s := azure.New(azure.Options{Getenv: func(k string) string {
			if k == "AZURE_STORAGE_CONNECTION_STRING" {
				return "DefaultEndpointsProtocol=http;AccountName=" + azuriteAccount + ";AccountKey=" + key + ";BlobEndpoint=" + endpoint + ";"
			}
			return ""
		}})
		t.Cleanup(s.Close)
		return s
	}
	s := with(azuriteKey)
	location := "az://" + azuriteAccount + "/written/m/_thaw/cache"
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // in blocks
	for _, body := range [][]byte{[]byte("first"), []byte("second"), large, {}} {
		if err := s.Write(t.Context(), location, "x.tar", bytes.NewReader(body), int64(len(body))); err != nil {
			t.Fatal(err)
		}
		plan, err := s.Plan(t.Context(), location, nil)
		if err != nil || len(plan.Files) != 1 || plan.Files[0].Name != "x.tar" || plan.Files[0].Size != int64(len(body)) {
			t.Fatalf("%+v, %v", plan, err)
		}
		if len(body) == 0 {
			continue
		}
		r, err := s.Read(t.Context(), plan.Files[0], 0, int64(len(body)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d of %d bytes, %v", len(got), len(body), err)
		}
	}
	if err := s.Write(t.Context(), location, "short", bytes.NewReader([]byte("abc")), 9); source.KindOf(err) != source.Broken {
		t.Error(err)
	}
	if plan, err := s.Plan(t.Context(), location, nil); err != nil || len(plan.Files) != 1 {
		t.Error("half a blob:", plan, err)
	}
	if err := with("c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA==").Write(t.Context(), location, "x", bytes.NewReader([]byte("abc")), 3); source.KindOf(err) != source.Denied {
		t.Error(err)
	}
}
