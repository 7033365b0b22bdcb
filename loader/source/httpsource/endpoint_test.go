package httpsource

import (
	"strings"
	"testing"
)

// TestParseEndpoint: the error of a server's address names what is wrong with it and how it is
// written, and never shows a credential.
func TestParseEndpoint(t *testing.T) {
	for raw, want := range map[string]string{
		"http://h": "", "https://h:9000/path/": "", "https://[::1]:9": "",
		"https://key:CANARY@nexus.example/hf": "HF_ENDPOINT holds a name or a password, which is not sent (leave it out: credentials come from HF_TOKEN)",
		"key:CANARY@nexus.example":            "HF_ENDPOINT holds a name or a password",
		"s3.example.com":                      `HF_ENDPOINT "s3.example.com" is not an http or https URL (did you mean "https://s3.example.com"?)`,
		"minio:9000":                          `(did you mean "https://minio:9000"?)`,
		"ftp://h":                             `HF_ENDPOINT "ftp://h" is not an http or https URL (such as https://huggingface.co)`,
		"http://":                             "is not an http or https URL (such as",
		"http://h?x=CANARY":                   "HF_ENDPOINT is not an http or https URL",
		"http://h h":                          `"http://h h" is not`,
	} {
		u, err := ParseEndpoint("HF_ENDPOINT", raw, "HF_TOKEN", "https://huggingface.co")
		switch {
		case want == "" && (err != nil || u.String() != strings.TrimSuffix(raw, "/")):
			t.Errorf("%s: %v, %v", raw, u, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "CANARY")):
			t.Errorf("%s: %v", raw, err)
		}
	}
}
