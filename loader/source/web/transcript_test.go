package web

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// TestTranscript: of a server with ETags, and of one that gives times alone.
func TestTranscript(t *testing.T) {
	for record, tag := range map[string]string{"transcript.txt": `"tag"`, "times.txt": ""} {
		t.Run(record, func(t *testing.T) {
			folder := t.TempDir()
			for name, body := range sourcetest.Files {
				put(t, folder, name, body)
				if err := os.Chtimes(filepath.Join(folder, name), time.Time{}, time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)); err != nil {
					t.Fatal(err)
				}
			}
			front := &sourcetest.Front{}
			files := http.FileServer(http.Dir(folder))
			plain := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tag != "" {
					w.Header().Set("ETag", tag)
				}
				files.ServeHTTP(w, r)
			}))
			s, url := serve(t, front.Before(plain.URL))
			sourcetest.RunTranscript(t, sourcetest.Transcript{Source: s, Front: front, Location: url, Secrets: []string{"SECRETsignature"},
				Hide: []string{url}, File: record})
		})
	}
}
