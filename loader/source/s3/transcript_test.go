package s3_test

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/s3"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestTranscript(t *testing.T) {
	srv := start(t)
	for name, body := range sourcetest.Files {
		srv.put(t, "a/model/"+name, body)
	}
	front := &sourcetest.Front{}
	url := front.Serve(t, srv.url)
	env := srv.env()
	s := s3.New(s3.Options{Getenv: func(name string) string { return strings.ReplaceAll(env(name), srv.url, url) }})
	t.Cleanup(s.Close)
	sourcetest.RunTranscript(t, sourcetest.Transcript{Source: s, Writer: s, Front: front, Location: "s3://" + bucket + "/a/model",
		Secrets: []string{"CANARYsecret", "SECRETsignature"}, Hide: []string{url}})
}
