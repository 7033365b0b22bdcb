package azure_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/testkit/azuretest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestTranscript(t *testing.T) {
	srv := azuretest.New(t)
	for name, body := range sourcetest.Files {
		srv.Put("a/model/"+name, body)
	}
	front := &sourcetest.Front{}
	url := front.Serve(t, srv.URL)
	s := azure.New(azure.Options{Getenv: func(name string) string { return strings.ReplaceAll(srv.Getenv(name), srv.URL, url) }})
	t.Cleanup(s.Close)
	sourcetest.RunTranscript(t, sourcetest.Transcript{Source: s, Writer: s, Front: front, Location: azuretest.Location("a/model"),
		Written: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
		Secrets: []string{azuretest.Key, "SECRETsignature"}, Hide: []string{url}})
}
