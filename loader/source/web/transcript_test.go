package web

import (
	"net/http"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestTranscript(t *testing.T) {
	folder := t.TempDir()
	for name, body := range sourcetest.Files {
		put(t, folder, name, body)
	}
	front := &sourcetest.Front{}
	files := http.FileServer(http.Dir(folder))
	plain := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"tag"`)
		files.ServeHTTP(w, r)
	}))
	s, url := serve(t, front.Before(plain.URL))
	sourcetest.RunTranscript(t, sourcetest.Transcript{Source: s, Front: front, Location: url, Secrets: []string{"SECRETsignature"}, Hide: []string{url}})
}
