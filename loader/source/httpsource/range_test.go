package httpsource

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// TestWeakTag: an ETag that a proxy made weak is said, in place of a change at the source.
func TestWeakTag(t *testing.T) {
	r, _ := answer(t.Context(), 206, strings.NewReader("2345"), 4, "Content-Range", "bytes 2-5/10", "ETag", `W/"v1"`)
	_, err := ResponseBody(r, RangeRequest{Source: "s", File: source.File{Name: "f", Size: 10}, Offset: 2, Length: 4, ETag: `"v1"`})
	const want = "s: f: came with a weak ETag (W/), as a proxy marks what it may change (have what is between pass this host through, " +
		"without compressing it)"
	if err == nil || err.Error() != want {
		t.Error(err)
	}
}

// TestPageForAnswer: a page in place of an API's answer is named by its title.
func TestPageForAnswer(t *testing.T) {
	for body, want := range map[string]string{
		"<html><head><TITLE>\n Captive portal &ndash; log in </TITLE>": "s: not its API: it is a page, \"Captive portal \u2013 log in\" (a proxy",
		"<html><title> </title>": "s: not its API (a proxy", "{": "s: not its API (a proxy", "<title>of token=x</title>": "s: not its API (a proxy",
	} {
		r, _ := answer(t.Context(), 200, strings.NewReader(body), int64(len(body)))
		var into struct{}
		if err := Decode(r, 1<<10, "s", json.Unmarshal, &into, "not its API"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestRangeInChunks: a range whose length stands in Content-Range alone, as proxies and mirrors
// send it, is read; one with more bytes is cut, one with fewer is short.
func TestRangeInChunks(t *testing.T) {
	for body, want := range map[string]string{"hello": "hello", "hello, and more": "hello", "he": "he"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 2-6/10")
			w.WriteHeader(http.StatusPartialContent)
			w.(http.Flusher).Flush() // no Content-Length
			io.WriteString(w, body)
		}))
		defer srv.Close()
		got, res, err := Range(t.Context(), srv.Client(),
			RangeRequest{URL: srv.URL, Source: "s", File: source.File{Name: "f", Size: 10}, Offset: 2, Length: 5})
		if err != nil || res.ContentLength != -1 {
			t.Fatalf("%q: %v", body, err)
		}
		if b, err := io.ReadAll(got); string(b) != want || err != nil {
			t.Errorf("%q: %q %v", body, b, err)
		}
		got.Close()
	}
}

// TestPageForRange: a page in place of a range, as logins and firewalls answer, is called one.
func TestPageForRange(t *testing.T) {
	for media, want := range map[string]string{"text/html; charset=utf-8": "a page (text/html) came", "application/octet-stream": "the whole file came"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			io.WriteString(w, "<html><title>Blocked</title></html>")
		}))
		_, _, err := Range(t.Context(), srv.Client(),
			RangeRequest{URL: srv.URL, Source: "s", File: source.File{Name: "f", Size: 10}, Offset: 2, Length: 5})
		if source.KindOf(err) != source.Malformed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", media, err)
		}
		srv.Close()
	}
}

// TestRedirectIsNamed: an error of a redirect names the server that it points at, without the
// path and the query, which may be signed.
func TestRedirectIsNamed(t *testing.T) {
	res := &http.Response{StatusCode: 308, Header: http.Header{"Location": {"https://hub.example/secret?sig=CANARY"}}}
	e := Status(res, "hf://o/r", "")
	if !strings.Contains(e.Error(), "308") || !strings.Contains(e.Error(), "https://hub.example") || strings.Contains(e.Error(), "secret") ||
		strings.Contains(e.Error(), "CANARY") || e.Fix == "" {
		t.Error(e)
	}
	if e := Status(&http.Response{StatusCode: 304, Header: http.Header{}}, "s", ""); e.Fix != "" {
		t.Error(e)
	}
}

// TestRangeRequest: what a request for a range says, and that it is signed when all of it is
// there.
func TestRangeRequest(t *testing.T) {
	var asked http.Header
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = r.Header }))
	defer srv.Close()
	c := Client(Options{})
	defer c.CloseIdleConnections()
	over := errors.New("no key")
	for _, tag := range []string{"", `"v1"`} {
		r := RangeRequest{URL: srv.URL, Header: http.Header{"X-Own": {"1"}, "Accept-Encoding": {"gzip"}}, Source: "s",
			File: source.File{Name: "f", Size: 10}, Offset: 2, Length: 5, ETag: tag}
		r.Sign = func(req *http.Request) error {
			req.Header.Set("X-Signed", req.Header.Get("X-Own")+req.Header.Get("Range")+req.Header.Get("If-Match"))
			return nil
		}
		if _, _, err := Range(t.Context(), c, r); source.KindOf(err) != source.Malformed {
			t.Error(err)
		}
		if asked.Get("X-Own") != "1" || asked.Get("Range") != "bytes=2-6" || asked.Get("Accept-Encoding") != "identity" ||
			asked.Get("If-Match") != tag || asked.Get("X-Signed") != "1bytes=2-6"+tag {
			t.Errorf("asked with %v", asked)
		}
		asked = nil
		r.Sign = func(*http.Request) error { return over }
		if _, _, err := Range(t.Context(), c, r); err != over || asked != nil {
			t.Errorf("%v, asked with %v", err, asked)
		}
		r.Sign, r.URL = nil, "http://x\x00?sig=CANARY"
		if _, _, err := Range(t.Context(), c, r); source.KindOf(err) != source.BadSource || strings.Contains(err.Error(), "CANARY") {
			t.Error(err)
		}
	}
}
