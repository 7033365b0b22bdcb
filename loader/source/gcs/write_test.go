package gcs_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/testkit"
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

// TestScopes: what reads has a token that may only read, and what writes one that may write.
func TestScopes(t *testing.T) {
	srv := gcstest.New(t)
	srv.Put("m/x.gguf", make([]byte, 10), "")
	machine := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		scope := r.URL.Query().Get("scopes")
		fmt.Fprintf(w, `{"access_token":"%s","expires_in":3599,"token_type":"Bearer"}`, scope[strings.LastIndexByte(scope, '.')+1:])
	}))
	env := map[string]string{"STORAGE_EMULATOR_HOST": srv.URL, "GCE_METADATA_HOST": strings.TrimPrefix(machine.URL, "http://")}
	s := gcs.New(gcs.Options{Getenv: func(k string) string { return env[k] }, Identity: true})
	t.Cleanup(s.Close)
	for range 2 { // a token that is known already is the right one too
		srv.Want("read_only")
		if _, err := s.Plan(t.Context(), bucket+"/m", nil); err != nil {
			t.Error("read:", err)
		}
		srv.Want("read_write")
		if err := s.Write(t.Context(), bucket+"/m", "_thaw/a", strings.NewReader("abc"), 3); err != nil {
			t.Error("write:", err)
		}
	}
}
