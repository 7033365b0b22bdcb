package huggingface_test

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/huggingface"
	"github.com/thaw-dev/thaw/testkit/huggingfacetest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestTranscript(t *testing.T) {
	srv := huggingfacetest.New(t)
	files := map[string][]byte{}
	for name, body := range sourcetest.Files {
		files["a folder/"+name] = append([]byte{}, body...) // nil removes a file
	}
	srv.Commit("main", files)
	front := &sourcetest.Front{}
	url := front.Serve(t, srv.URL)
	s := huggingface.New(huggingface.Options{Getenv: func(name string) string { return strings.ReplaceAll(srv.Getenv(name), srv.URL, url) }})
	t.Cleanup(s.Close)
	sourcetest.RunTranscript(t, sourcetest.Transcript{Source: s, Front: front, Location: repo + "/a folder",
		Secrets: []string{huggingfacetest.Token, "SECRETsignature"}, Hide: []string{url}})
}
