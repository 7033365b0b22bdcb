package s3_test

import (
	"bytes"
	"io"
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

// TestWriteToOtherRegion: a body that was read in the wrong region is sent whole in the right
// one.
func TestWriteToOtherRegion(t *testing.T) {
	srv := start(t)
	srv.fault(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Header.Get("Authorization"), "/ap-south-1/s3/") {
			return false
		}
		io.Copy(io.Discard, r.Body)
		w.Header().Set("X-Amz-Bucket-Region", "ap-south-1")
		fail(w, http.StatusMovedPermanently, "PermanentRedirect")
		return true
	})
	s := s3.New(s3.Options{Getenv: srv.env()})
	defer s.Close()
	body := bytes.Repeat([]byte("0123456789"), 1000)
	from := bytes.NewReader(append([]byte("head"), body...))
	from.Seek(4, io.SeekStart) // what was read before is no part of the body
	if err := s.Write(t.Context(), "s3://"+bucket+"/m", "_thaw/a", from, int64(len(body))); err != nil {
		t.Fatal(err)
	}
	o, err := srv.back.GetObject(bucket, "m/_thaw/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Contents.Close()
	if got, err := io.ReadAll(o.Contents); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes of %d are stored, %v", len(got), len(body), err)
	}
}
