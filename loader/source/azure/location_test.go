package azure

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"az://acc/weights/a/b", "acc|weights|a/b|"},
		{"az://acc/weights", "acc|weights||"},
		{"az://acc/$root/a", "acc|$root|a|"},
		{"https://acc.blob.core.windows.net/weights/a%20b", "acc|weights|a b|https://acc.blob.core.windows.net"},
		{"https://acc.z12.blob.storage.azure.net/weights/a", "acc|weights|a|https://acc.z12.blob.storage.azure.net"},
	} {
		p, err := parse(tc.in)
		if got := strings.Join([]string{p.account, p.container, p.prefix, p.endpoint}, "|"); err != nil || got != tc.want {
			t.Errorf("%s: %s, %v", tc.in, got, err)
		}
	}
	for _, in := range []string{
		"az://", "az://acc", "az://acc/", "az://A/weights/x", "az://acc/We/x", "az://acc/weights/../x", "az://acc/weights/a//b", "az://acc/weights/a\\b",
		"az://acc/weights/x?sig=CANARY", "https://user:CANARY@acc.blob.core.windows.net/weights/x",
		"https://acc.blob.core.windows.net.evil.example/weights/x", "https://127.0.0.1/weights/x", "https://acc.blob.core.windows.net:8443/weights/x",
		"http://acc.blob.core.windows.net/weights/x", "s3://acc/weights/x", "",
	} {
		if p, err := parse(in); err == nil {
			t.Errorf("%q was taken as %+v", in, p)
		} else if strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%q: the secret is in %v", in, err)
		}
	}
}

func TestConnectionString(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"UseDevelopmentStorage=true", "http://127.0.0.1:10000/devstoreaccount1|devstoreaccount1"},
		{"DefaultEndpointsProtocol=https;AccountName=a1b;AccountKey=eA==;EndpointSuffix=core.windows.net", "https://a1b.blob.core.windows.net|a1b"},
		{"AccountName=a1b;AccountKey=eA==", "https://a1b.blob.core.windows.net|a1b"},
		{"DefaultEndpointsProtocol=http;AccountName=a1b;AccountKey=eA==", "http://a1b.blob.core.windows.net|a1b"},
		{"BlobEndpoint=https://a1b.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x%3D", "https://a1b.blob.core.windows.net/|a1b"},
		{"BlobEndpoint=https://models.example/;SharedAccessSignature=sv=1&sig=x", "https://models.example/|named"},
		{"BlobEndpoint=https://models.example/;SharedAccessSignature=sv=1&sig=x;AccountName=a1b", "https://models.example/|a1b"},
		{"BlobEndpoint=http://azurite:10000/a1b;SharedAccessSignature=sv=1&sig=x", "http://azurite:10000/a1b|a1b"},
		{"BlobEndpoint=https://models.example/a/b;SharedAccessSignature=sv=1&sig=x", "https://models.example/a/b|named"},
	} {
		c, err := parseConnection(tc.in, "named")
		if got := c.endpoint + "|" + c.account; err != nil || got != tc.want {
			t.Errorf("%s: %s, %v", tc.in, got, err)
		}
	}
}
