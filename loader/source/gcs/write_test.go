package gcs_test

import (
	"net/http"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/testkit/gcstest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestWrite(t *testing.T) {
	open := func(srv *gcstest.Server) *gcs.Source {
		s := gcs.New(gcs.Options{Getenv: srv.Getenv})
		t.Cleanup(s.Close)
		return s
	}
	srv, closed := gcstest.New(t), gcstest.New(t)
	closed.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		gcstest.Fail(w, http.StatusForbidden, "forbidden")
		return true
	})
	sourcetest.RunWrites(t, open(srv), bucket+"/m/_thaw/cache", open(closed))
}
