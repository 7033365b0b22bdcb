package sourcetest

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// answer is what a server may answer to any request; status 0: it breaks the connection.
type answer struct {
	status int
	head   string // fields, separated by lines
	body   string
}

var answers = []answer{
	{0, "", ""},
	{200, "Content-Type: text/html", "<html>log in</html>"},
	{200, "Content-Type: application/json", "{}"},
	{200, "", ""},
	{204, "", ""},
	{301, "Location: https://169.254.1.1/path?sig=SECRETsignature", ""},
	{302, "Location: http://169.254.169.254/latest", ""},
	{304, "", ""},
	{307, "", ""},
	{400, "Content-Type: text/plain", "the clock is wrong"},
	{401, "", ""},
	{403, "Content-Type: text/plain", "not from this network"},
	{404, "", ""},
	{405, "", ""},
	{407, "", ""},
	{408, "Retry-After: 4", ""},
	{409, "", ""},
	{410, "", ""},
	{412, "", ""},
	{416, "", ""},
	{418, "Content-Type: text/plain", "see https://x.example/?sig=SECRETsignature"},
	{421, "", ""},
	{425, "", ""},
	{429, "", ""},
	{429, "Retry-After: 7", ""},
	{429, "Retry-After: -7", ""},
	{500, "Retry-After: 3", ""},
	{501, "", ""},
	{502, "", ""},
	{503, "", ""},
	{503, "Retry-After-Ms: 1500\nRetry-After: 9", ""},
	{503, "X-Ms-Retry-After-Ms: 2500", ""},
	{504, "Retry-After: 1.5", ""},
	{507, "", ""},
}

func (a answer) String() string {
	if a.status == 0 {
		return "a connection that breaks"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s %s", a.status, strings.ReplaceAll(a.head, "\n", ", "), a.body))
}

func (a answer) give(w http.ResponseWriter, _ *http.Request) {
	if a.status == 0 {
		panic(http.ErrAbortHandler)
	}
	for line := range strings.Lines(a.head) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// change is what may be wrong with an answer to a request for a range.
type change struct {
	name   string
	change func(r *http.Response)
}

func setField(name, value string) func(*http.Response) {
	return func(r *http.Response) { r.Header.Set(name, value) }
}

// replaceBody gives an answer another body, with its length or in chunks.
func replaceBody(r *http.Response, body string, chunked bool) {
	r.Body.Close()
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	if chunked {
		r.ContentLength = -1
		r.Header.Del("Content-Length")
	}
}

var changes = []change{
	{"of another version", func(r *http.Response) {
		r.Header.Set("ETag", `"another"`)
		r.Header.Set("X-Goog-Generation", "1")
		r.Header.Set("X-Repo-Commit", strings.Repeat("0", 40))
	}},
	{"of another time", setField("Last-Modified", "Sun, 29 Nov 2026 07:59:59 GMT")},
	{"with a weak tag", setField("ETag", `W/"weak"`)},
	{"without tag", func(r *http.Response) { r.Header.Del("ETag") }},
	{"without Content-Range", func(r *http.Response) { r.Header.Del("Content-Range") }},
	{"that is another", setField("Content-Range", "bytes 11-30/100")},
	{"that ends earlier", setField("Content-Range", "bytes 10-28/100")},
	{"of a longer file", setField("Content-Range", "bytes 10-29/101")},
	{"of a file of unknown size", setField("Content-Range", "bytes 10-29/*")},
	{"that is compressed", setField("Content-Encoding", "gzip")},
	{"that says it is not compressed", setField("Content-Encoding", "identity")},
	{"with status 200", func(r *http.Response) { r.StatusCode = 200 }},
	{"with status 200 and no Content-Range", func(r *http.Response) { r.StatusCode = 200; r.Header.Del("Content-Range") }},
	{"that is a page", func(r *http.Response) {
		r.StatusCode = 200
		r.Header.Del("Content-Range")
		r.Header.Set("Content-Type", "text/html; charset=utf-8")
	}},
	{"that is shorter", func(r *http.Response) { replaceBody(r, "012345678", false) }},
	{"that is longer", func(r *http.Response) { replaceBody(r, strings.Repeat("0123456789", 3), false) }},
	{"in chunks", func(r *http.Response) { replaceBody(r, strings.Repeat("0123456789", 2), true) }},
	{"in chunks, shorter", func(r *http.Response) { replaceBody(r, "012345678", true) }},
	{"in chunks, longer", func(r *http.Response) { replaceBody(r, strings.Repeat("0123456789", 3), true) }},
	{"in place of which the whole file comes", func(r *http.Response) {
		r.StatusCode = 200
		r.Header.Del("Content-Range")
		replaceBody(r, strings.Repeat("0123456789", 10), false)
	}},
}
