package azure_test

import (
	"testing"

	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/testkit/azuretest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestAzuriteWrite(t *testing.T) {
	endpoint := azurite(t)
	azuretest.AzuriteContainer(t, endpoint, "written")
	with := func(key string) *azure.Source {
		s := azure.New(azure.Options{Getenv: func(k string) string {
			if k == "AZURE_STORAGE_CONNECTION_STRING" {
				return "DefaultEndpointsProtocol=http;AccountName=" + azuretest.AzuriteAccount + ";AccountKey=" + key + ";BlobEndpoint=" + endpoint +
					";"
			}
			return ""
		}})
		t.Cleanup(s.Close)
		return s
	}
	s := with(azuretest.AzuriteKey)
	location := "az://" + azuretest.AzuriteAccount + "/written/m/_thaw/cache"
	sourcetest.RunWrites(t, s, location, with("c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA=="))
}
