package gcs

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// TestRefusalsNameAWayOut: a bucket whose requester pays, and a request that is refused for its
// form, say what helps.
func TestRefusalsNameAWayOut(t *testing.T) {
	s := New(Options{Getenv: os.Getenv})
	for reason, want := range map[string]string{
		"userProjectMissing":  "the bucket's requester pays",
		"required":            "the bucket's requester pays",
		"invalid":             "check the bucket's name",
		"accountDisabled":     "restore its billing",
		"accessNotConfigured": "enable the Cloud Storage JSON API",
		"resourceIsEncryptedWithCustomerEncryptionKey": "a key of the customer's own",
		"cloudKmsPermissionDenied":                     "restore the key in Cloud KMS",
		"userRateLimitExceeded":                        "it asks for fewer requests",
	} {
		r := &http.Response{StatusCode: 400, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(`{"error":{"errors":[{"reason":"` + reason + `"}]}}`))}
		err := responseError(r, bucketLocation{Name: "b"}, "", s.tokens)
		if !strings.Contains(err.Error(), want) || (source.KindOf(err) == source.Unavailable) != strings.Contains(reason, "RateLimit") {
			t.Errorf("%s: %v\nlacks %s", reason, err, want)
		}
	}
}
