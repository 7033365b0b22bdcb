package s3_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/s3"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestWrite(t *testing.T) {
	srv := start(t)
	srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=AKIDtest/") {
			fail(w, http.StatusForbidden, "AccessDenied")
			return true
		}
		return false
	})
	s, denied := s3.New(s3.Options{Getenv: srv.env()}), s3.New(s3.Options{Getenv: srv.env("AWS_ACCESS_KEY_ID", "AKIDother")})
	t.Cleanup(s.Close)
	t.Cleanup(denied.Close)
	sourcetest.RunWrites(t, s, "s3://"+bucket+"/m/_thaw/cache", denied)
}
