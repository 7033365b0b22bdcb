package azure_test

import (
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/source/sourcetest"
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
	sourcetest.RunWrites(t, s, location, with("c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA=="))
}
