package gcs

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// TestRecordOfRefusals: what is made of each status and reason of the API.
func TestRecordOfRefusals(t *testing.T) {
	s := withEnv(t, map[string]string{"THAW_GCS_ANONYMOUS": "true"})
	var out strings.Builder
	for _, reason := range []string{"", "required", "userProjectMissing", "forbidden", strings.Repeat("x", 59), strings.Repeat("x", 60)} {
		before := ""
		for _, status := range []int{304, 307, 400, 401, 403, 404, 409, 410, 412, 416, 429, 500, 503} {
			body := `{"error":{"message":"words of the API","errors":[{"reason":"` + reason + `"},{"reason":"second"}]}}`
			if reason == "" {
				body = "no JSON"
			}
			r := &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{"Retry-After": {"7"}}}
			line := sourcetest.Describe(responseError(r, bucketLocation{Scheme: "gs", Name: "b"}, "f", s.tokens))
			if line = strings.ReplaceAll(line, fmt.Sprint(status), "STATUS"); line != before {
				fmt.Fprintf(&out, "%q %d: %s\n", reason, status, line)
			}
			before = line
		}
	}
	sourcetest.Compare(t, "refusals.txt", out.String())
}

// TestRecordOfObjects: what is read from each form of an object's metadata.
func TestRecordOfObjects(t *testing.T) {
	good := object{Name: "a/x.gguf", Size: "5", Generation: "7", CRC32C: "AAAAAA==", MD5: "AAAAAAAAAAAAAAAAAAAAAA=="}
	var out strings.Builder
	for _, change := range []func(*object){
		func(*object) {}, func(o *object) { o.CRC32C = "" }, func(o *object) { o.CRC32C = "AAAA" }, func(o *object) { o.CRC32C = "AAAAAA==x" },
		func(o *object) { o.CRC32C, o.MD5 = "", "AAAA" }, func(o *object) { o.CRC32C, o.MD5 = "", o.MD5+"x" }, func(o *object) { o.Size = "" }, func(o *object) { o.Size = "-1" },
		func(o *object) { o.Size = "0" }, func(o *object) { o.Size = "9223372036854775808" }, func(o *object) { o.Generation = "" }, func(o *object) { o.Generation = "7x" },
		func(o *object) { o.Name = "a/sub/"; o.Size = "" }, func(o *object) { o.Name = "elsewhere" }, func(o *object) { o.ContentEncoding = "gzip" },
		func(o *object) { o.ContentEncoding = "identity" },
	} {
		o := good
		change(&o)
		f, err := fileOf(bucketLocation{Scheme: "gs", Name: "b", Prefix: "a"}, o, nil)
		fmt.Fprintf(&out, "%+v: %+v, %v\n", o, f, err)
	}
	sourcetest.Compare(t, "objects.txt", out.String())
}
