package gcs_test

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/testkit/gcstest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestTranscript(t *testing.T) {
	srv := gcstest.New(t)
	for name, body := range sourcetest.Files {
		srv.Put("a/model/"+name, body, "")
	}
	front := &sourcetest.Front{}
	url := front.Serve(t, srv.URL)
	s := gcs.New(gcs.Options{Getenv: func(name string) string { return strings.ReplaceAll(srv.Getenv(name), srv.URL, url) }})
	t.Cleanup(s.Close)
	sourcetest.RunTranscript(t, sourcetest.Transcript{Source: s, Writer: s, Front: front, Location: bucket + "/a/model",
		Secrets: []string{"SECRETsignature"}, Hide: []string{url}})
}
