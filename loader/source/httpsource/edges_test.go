package httpsource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// trackedBody is an answer's body that knows whether it was closed.
type trackedBody struct {
	io.Reader
	closed bool
}

func (b *trackedBody) Close() error {
	b.closed = true
	return nil
}

// answer is one of a server to a ranged GET.
func answer(ctx context.Context, status int, body io.Reader, length int64, fields ...string) (*http.Response, *trackedBody) {
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://models.example/f", nil)
	if body == nil {
		body = http.NoBody
	}
	b := &trackedBody{Reader: body}
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: b, ContentLength: length, Request: req}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r, b
}

// TestStatuses: the kind of each status, whether it asks for fewer requests, and for how long
// a pause.
func TestStatuses(t *testing.T) {
	for status := 200; status < 600; status++ {
		want, busy := source.Refused, false
		switch status {
		case 401, 403, 407:
			want = source.Denied
		case 404, 410:
			want = source.NotFound
		case 412, 416:
			want = source.Changed
		case 408, 425, 429:
			want = source.Unavailable
		}
		if status >= 500 {
			want = source.Unavailable
		}
		busy = status == 429 || status == 503
		r, _ := answer(t.Context(), status, nil, 0, "Retry-After", "7", "Location", "https://other.example/x?sig=CANARY")
		e := Status(r, "s", "f")
		after := time.Duration(0)
		if want == source.Unavailable {
			after = 7 * time.Second
		}
		if e.Kind != want || e.Busy != busy || e.RetryAfter != after || e.Source != "s" || e.File != "f" ||
			!strings.Contains(e.Detail, fmt.Sprint(status)) ||
			strings.Contains(e.Error(), "other.example") != (status/100 == 3) || strings.Contains(e.Error(), "CANARY") ||
			strings.Contains(e.Detail, "overwritten") != (want == source.Changed) ||
			(e.Fix != "") != (status/100 == 3 || status == 407) {
			t.Errorf("%d: %+v", status, e)
		}
		e.Fix = "check its name"
		kept := *e
		if want == source.NotFound {
			kept.Kind, kept.Detail, kept.Fix = source.Changed, "is gone since it was listed", ""
		}
		if gone := GoneIsChanged(e); !reflect.DeepEqual(gone, &kept) {
			t.Errorf("%d of a listed file: %v", status, gone)
		}
	}
	if err := GoneIsChanged(io.EOF); err != io.EOF {
		t.Error(err)
	}
	now := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for _, x := range []struct {
		fields []string
		want   time.Duration
	}{
		{nil, 0}, {[]string{"Retry-After", "7"}, 7 * time.Second}, {[]string{"Retry-After", "1"}, time.Second}, {[]string{"Retry-After", "0"}, 0}, {[]string{"Retry-After", "-1"}, 0}, {[]string{"Retry-After", "x"}, 0},
		{[]string{"X-Ms-Retry-After-Ms", "1500", "Retry-After", "7"}, 1500 * time.Millisecond}, {[]string{"Retry-After-Ms", "1", "Retry-After", "7"}, time.Millisecond},
		{[]string{"Retry-After-Ms", "0", "Retry-After", "7"}, 7 * time.Second}, {[]string{"Retry-After-Ms", "x", "Retry-After", "7"}, 7 * time.Second}, {[]string{"X-Ms-Retry-After-Ms", "2", "Retry-After-Ms", "3"}, 2 * time.Millisecond},
		{[]string{"Retry-After", "Sun, 29 Nov 2026 08:00:09 GMT"}, 9 * time.Second}, {[]string{"Retry-After", "Sun, 29 Nov 2026 08:00:00 GMT"}, 0}, {[]string{"Retry-After", "Sun, 29 Nov 2026 07:00:09 GMT"}, 0},
	} {
		r, _ := answer(t.Context(), 503, nil, 0, x.fields...)
		if got := RetryAfter(r.Header, now); got != x.want {
			t.Errorf("%v: %v, want %v", x.fields, got, x.want)
		}
	}
}

// TestAnswersToRanges: bytes 2 to 5 of ten are asked for; whatever comes, they are read or an
// error says why, and the body is closed.
func TestAnswersToRanges(t *testing.T) {
	const all, v1 = "0123456789", `"v1"`
	own := errors.New("the source's own")
	for _, x := range []struct {
		name   string
		status int
		body   string
		length int64
		fields []string
		change func(a *RangeRequest)
		want   source.Kind
		err    error
	}{
		{name: "right", status: 206, body: "2345", length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", v1}},
		{name: "in chunks", status: 206, body: "2345and more", length: -1, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", v1}},
		{name: "without quotes", status: 206, body: "2345", length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", "v1"}},
		{name: "another version", status: 206, length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", `"v2"`}, want: source.Changed},
		{name: "a weak tag", status: 206, length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", `W/"v1"`}, want: source.Changed},
		{name: "no tag", status: 206, length: 4, fields: []string{"Content-Range", "bytes 2-5/10"}, want: source.Malformed},
		{name: "no tag where none is pinned", status: 206, body: "2345", length: 4, fields: []string{"Content-Range", "bytes 2-5/10"}, change: func(a *RangeRequest) { a.ETag = "" }},
		{name: "another size, pinned", status: 206, length: 4, fields: []string{"Content-Range", "bytes 2-5/11", "ETag", v1}, want: source.Malformed},
		{name: "another size, not pinned", status: 206, length: 4, fields: []string{"Content-Range", "bytes 2-5/11"}, change: func(a *RangeRequest) { a.ETag = "" }, want: source.Changed},
		{name: "another range, not pinned", status: 206, length: 4, fields: []string{"Content-Range", "bytes 3-6/10"}, change: func(a *RangeRequest) { a.ETag = "" }, want: source.Malformed},
		{name: "shorter", status: 206, length: 3, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", v1}, want: source.Malformed},
		{name: "longer", status: 206, length: 5, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", v1}, want: source.Malformed},
		{name: "empty", status: 206, length: 0, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", v1}, want: source.Malformed},
		{name: "no range", status: 206, length: 4, fields: []string{"ETag", v1}, want: source.Malformed},
		{name: "a range with 200", status: 200, length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", v1}, want: source.Malformed},
		{name: "whole, and none may", status: 200, length: 10, fields: []string{"ETag", v1}, want: source.Malformed},
		{name: "whole", status: 200, body: all, length: 10, fields: []string{"ETag", v1}, change: func(a *RangeRequest) { a.MaxWhole = 10 }},
		{name: "whole, and all of it was asked for", status: 200, body: "2345", length: 4, fields: []string{"ETag", v1}, change: func(a *RangeRequest) { a.Offset, a.File.Size = 0, 4 }},
		{name: "whole of another version, and all of it was asked for", status: 200, length: 4, fields: []string{"ETag", `"v2"`}, change: func(a *RangeRequest) { a.Offset, a.File.Size = 0, 4 }, want: source.Changed},
		{name: "whole, and all but a byte was asked for", status: 200, length: 5, fields: []string{"ETag", v1}, change: func(a *RangeRequest) { a.Offset, a.File.Size = 0, 5 }, want: source.Malformed},
		{name: "whole without a tag", status: 200, body: all, length: 10, change: func(a *RangeRequest) { a.MaxWhole = 10 }},
		{name: "too large to be whole", status: 200, length: 10, fields: []string{"ETag", v1}, change: func(a *RangeRequest) { a.MaxWhole = 9 }, want: source.Malformed},
		{name: "whole of another size", status: 200, length: 11, fields: []string{"ETag", v1}, change: func(a *RangeRequest) { a.MaxWhole = 20 }, want: source.Malformed},
		{name: "whole of another version", status: 200, length: 10, fields: []string{"ETag", `"v2"`}, change: func(a *RangeRequest) { a.MaxWhole = 10 }, want: source.Changed},
		{name: "whole, and breaks", status: 200, body: "0", length: 10, fields: []string{"ETag", v1}, change: func(a *RangeRequest) { a.MaxWhole = 10 }, want: source.Unavailable},
		{name: "compressed", status: 206, length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "ETag", v1, "Content-Encoding", "identity", "Content-Encoding", "br"}, want: source.Corrupt},
		{name: "the source's own mark of a version", status: 206, body: "2345", length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "X", "1"}, change: func(a *RangeRequest) {
			a.ETag, a.SameVersion = "", func(h http.Header) bool { return h.Get("X") == "1" }
		}},
		{name: "another mark", status: 206, length: 4, fields: []string{"Content-Range", "bytes 2-5/10", "X", "2"}, change: func(a *RangeRequest) {
			a.ETag, a.SameVersion = "", func(h http.Header) bool { return h.Get("X") == "1" }
		}, want: source.Changed},
		{name: "refused", status: 403, want: source.Denied},
		{name: "refused in the source's words", status: 403, change: func(a *RangeRequest) { a.ResponseError = func(*http.Response) error { return own } }, err: own},
		{name: "no content", status: 204, want: source.Refused},
	} {
		a := RangeRequest{Source: "s", File: source.File{Name: "f", Size: 10}, Offset: 2, Length: 4, ETag: v1}
		if x.change != nil {
			x.change(&a)
		}
		r, tracked := answer(t.Context(), x.status, strings.NewReader(x.body), x.length, x.fields...)
		body, err := ResponseBody(r, a)
		if source.KindOf(err) != x.want || x.err != nil && err != x.err || (err == nil) != (x.want == "" && x.err == nil) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
		if e, is := errors.AsType[*source.Error](err); is && (e.Source != "s" || e.File != "f") {
			t.Errorf("%s: the error is of %q, %q", x.name, e.Source, e.File)
		}
		if err != nil {
			if !tracked.closed || body != nil {
				t.Errorf("%s: closed %v", x.name, tracked.closed)
			}
			continue
		}
		if b, err := io.ReadAll(body); string(b) != "2345" || err != nil || tracked.closed {
			t.Errorf("%s: %q, %v", x.name, b, err)
		}
		if body.Close(); !tracked.closed {
			t.Errorf("%s: the body stays open", x.name)
		}
	}
	left, cancel := context.WithCancelCause(t.Context())
	cancel(own)
	r, tracked := answer(left, 200, strings.NewReader("0"), 10)
	if _, err := ResponseBody(r, RangeRequest{File: source.File{Size: 10}, Offset: 2, Length: 4, MaxWhole: 10}); err != own ||
		!tracked.closed {
		t.Errorf("of a caller that left: %v", err)
	}
}

// TestBodies: bodies that are shorter, longer and broken, read byte by byte as well.
func TestBodies(t *testing.T) {
	broken := errors.New("reset")
	left, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	a := RangeRequest{Source: "s", File: source.File{Name: "f"}, Offset: 7}
	for name, x := range map[string]struct {
		ctx  context.Context
		body io.Reader
		want source.Kind
		says string
	}{
		"whole": {t.Context(), strings.NewReader("abcd"), "", ""}, "longer": {t.Context(), strings.NewReader("abcde"), "", ""},
		"shorter": {t.Context(), strings.NewReader("abc"), source.Malformed, "at byte 7 ended after 3 of 4"}, "none": {t.Context(), strings.NewReader(""), source.Malformed, "after 0 of 4"},
		"breaks": {t.Context(), io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(broken)), source.Unavailable, "broke after 2 of 4"},
		"left":   {left, strings.NewReader("ab"), "", "reset"},
	} {
		b := make([]byte, 4)
		err := ReadFull(x.ctx, iotest.OneByteReader(x.body), b, a)
		if source.KindOf(err) != x.want || (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) ||
			err == nil && string(b) != "abcd" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for name, x := range map[string]struct {
		ctx  context.Context
		body io.Reader
		want source.Kind
	}{
		"at the limit": {t.Context(), strings.NewReader("abcd"), ""}, "above it": {t.Context(), strings.NewReader("abcde"), source.Malformed}, "empty": {t.Context(), strings.NewReader(""), ""},
		"breaks": {t.Context(), iotest.ErrReader(broken), source.Unavailable}, "left": {left, iotest.ErrReader(io.EOF), ""},
	} {
		r, _ := answer(x.ctx, 200, x.body, -1)
		b, err := ReadBody(r, 4, "s")
		if source.KindOf(err) != x.want || x.want == "" && err != nil || x.want != "" && b != nil {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	r, _ := answer(left, 200, iotest.ErrReader(io.ErrUnexpectedEOF), -1)
	if _, err := ReadBody(r, 4, "s"); err != broken {
		t.Errorf("of a caller that left: %v", err)
	}
	for in, want := range map[string]string{"": ErrShort.Error(), "abc": ErrShort.Error(), "abcd": "", "abcdef": ""} {
		for _, from := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.DataErrReader, func(r io.Reader) io.Reader { return r }} {
			got, err := io.ReadAll(Exactly(from(strings.NewReader(in)), 4))
			if fmt.Sprint(err) != map[bool]string{true: "<nil>", false: want}[want == ""] || string(got) != in[:min(4, len(in))] {
				t.Errorf("exactly 4 of %q: %q, %v", in, got, err)
			}
		}
	}
	bucket := Bucket{"s3", "b", "p"}
	for size, want := range map[int64]string{0: "", 4: "abcd"} {
		req, err := bucket.NewUpload(t.Context(), http.MethodPut, "https://b.example/x", "f", strings.NewReader("abcdef"), size)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(req.Body); string(b) != want || err != nil || req.ContentLength != size || size == 0 && req.Body != http.NoBody ||
			req.Header.Get("Content-Type") != "application/octet-stream" || req.Method != http.MethodPut {
			t.Errorf("%d bytes: %q, %v, %d", size, b, err, req.ContentLength)
		}
	}
	if _, err := bucket.NewUpload(t.Context(), http.MethodPut, "https://b.example/\x00", "f", nil, 1); source.KindOf(err) != source.BadSource {
		t.Error(err)
	}
}

// TestBuckets: the names of buckets and folders, and keys back and forth.
func TestBuckets(t *testing.T) {
	for location, want := range map[string]Bucket{
		"s3://abc": {"s3", "abc", ""}, "s3://abc/": {"s3", "abc", ""}, "s3://a.b-c_d/x/y/": {"s3", "a.b-c_d", "x/y"}, "s3://0a0/x": {"s3", "0a0", "x"}, "s3://abc//x": {"s3", "abc", "x"},
		"s3://" + strings.Repeat("a", 63) + "/x": {"s3", strings.Repeat("a", 63), "x"}, "s3://abc/..x/x..": {"s3", "abc", "..x/x.."}, "s3://abc/a b": {"s3", "abc", "a b"},
	} {
		b, err := ParseBucket("s3", location, 63)
		if err != nil || b != want {
			t.Errorf("%s: %+v, %v", location, b, err)
		}
		if again, err := ParseBucket("s3", b.String(), 63); err != nil || again != b {
			t.Errorf("%s: %+v, %v", b, again, err)
		}
		key := b.Key("d/f.gguf")
		f := source.File{Name: "d/f.gguf", Ref: b.Ref(key)}
		if back, k, err := ParseRef("s3", f); err != nil || back != b || k != key || strings.HasPrefix(key, "/") ||
			!strings.HasSuffix(key, "d/f.gguf") {
			t.Errorf("%s: %q, %+v, %v", location, k, back, err)
		}
	}
	for _, bad := range []string{
		"gs://abc/x", "abc", "s3:/abc", "s3://", "s3://ab", "s3://a", "s3://-abc", "s3://abc-", "s3://.abc", "s3://Abc", "s3://a..b", "s3://a/b", "s3://abc/u@x", "s3://a..bc/x", "s3://" + strings.Repeat("a", 64), "s3://abc?x", "s3://abc/x?y",
		"s3://abc/#x", "s3://u@abc/x", "s3://abc/x\\y", "s3://abc/x\x1f", "s3://abc/x\x7f", "s3://abc/.", "s3://abc/..", "s3://abc/a/../b", "s3://abc/a/./b", "s3://abc/a//b",
	} {
		_, err := ParseBucket("s3", bad, 63)
		if e, _ := errors.AsType[*source.Error](err); e == nil || e.Kind != source.BadSource || e.Fix == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, _, err := ParseRef("s3", source.File{Name: "f", Ref: "b"}); source.KindOf(err) != source.BadSource {
		t.Error(err)
	}
}

// TestListings: what a bucket's pages become, and the bounds of a listing.
func TestListings(t *testing.T) {
	b := Bucket{"s3", "abc", "p"}
	file := func(name string) source.File { return source.File{Name: name, Size: 1, Version: "v"} }
	list := func(pages ...[]source.File) (source.Plan, error) {
		n := 0
		return b.List(func(from string) ([]source.File, string, error) {
			if want := map[bool]string{false: fmt.Sprint("page ", n)}[n == 0]; from != want {
				t.Errorf("page %d is asked for from %q", n, from)
			}
			n++
			next := ""
			if n < len(pages) {
				next = fmt.Sprint("page ", n)
			}
			return pages[n-1], next, nil
		})
	}
	plan, err := list([]source.File{file("p/"), file("p/a"), file("p/d/")}, nil, []source.File{file("p/d/b")})
	if err != nil || fmt.Sprint(plan.Files) != fmt.Sprint([]source.File{{Name: "a", Size: 1, Version: "v", Ref: "abc|p/a"}, {Name: "d/b", Size: 1, Version: "v", Ref: "abc|p/d/b"}}) {
		t.Errorf("%+v, %v", plan, err)
	}
	many := make([]source.File, listFiles)
	for i := range many {
		many[i] = file(fmt.Sprint("p/", i))
	}
	pages := make([][]source.File, listPages)
	pages[listPages-1] = []source.File{file("p/a")}
	for name, x := range map[string]struct {
		pages [][]source.File
		want  source.Kind
	}{
		"as many files as may be": {[][]source.File{many}, ""}, "one more": {[][]source.File{many[1:], {file("p/a"), file("p/b")}}, source.Refused},
		"as many pages as may be": {pages, ""}, "one page more": {append([][]source.File{nil}, pages...), source.Malformed},
		"nothing": {[][]source.File{nil}, source.NotFound}, "markers alone": {[][]source.File{{file("p/"), file("p/d/")}}, source.NotFound},
		"what was not asked for": {[][]source.File{{file("p/a"), file("q/a")}}, source.Malformed}, "a longer name": {[][]source.File{{file("pp/a")}}, source.Malformed},
	} {
		plan, err := list(x.pages...)
		if source.KindOf(err) != x.want || err != nil && (plan.Files != nil || !strings.HasPrefix(err.Error(), "s3://abc/p")) {
			t.Errorf("%s: %d files, %v", name, len(plan.Files), err)
		}
	}
	asked := 0
	if _, err := b.List(func(string) ([]source.File, string, error) {
		asked++
		return []source.File{file("p/a")}, "again", nil
	}); source.KindOf(err) != source.Malformed || asked != 2 {
		t.Errorf("a page that goes on at itself: asked %d times, %v", asked, err)
	}
	failed := errors.New("no")
	if _, err := b.List(func(string) ([]source.File, string, error) { return nil, "", failed }); err != failed {
		t.Error(err)
	}
	for size, want := range map[int]source.Kind{4: "", 5: source.Malformed} {
		r, _ := answer(t.Context(), 200, bytes.NewReader(make([]byte, size)), -1)
		var got []byte
		err := Decode(r, 4, b.String(), func(raw []byte, into any) error { got = raw; return nil }, nil, "odd")
		if source.KindOf(err) != want || want == "" && len(got) != size {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	r, _ := answer(t.Context(), 200, strings.NewReader("x"), -1)
	if err := Decode(r, 4, b.String(), func([]byte, any) error { return failed }, nil, "is odd"); source.KindOf(err) != source.Malformed ||
		!strings.Contains(err.Error(), "is odd") {
		t.Error(err)
	}
}

// TestEdgesOfPublic: of each network that is not public, its first and last address, and that
// those beside it are.
func TestEdgesOfPublic(t *testing.T) {
	for _, x := range [][4]string{ // before, first, last, behind; "" is not public for another reason
		{"", "0.0.0.0", "0.255.255.255", "1.0.0.0"}, {"9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"}, {"100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"},
		{"126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"}, {"169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"}, {"172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"},
		{"191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"}, {"192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"}, {"192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"},
		{"192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"}, {"198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"}, {"198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"},
		{"203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"}, {"223.255.255.255", "224.0.0.0", "255.255.255.255", ""}, {"168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17"},
		{"2000:ffff::1", "2001::", "2001:1ff:ffff::", "2001:200::"}, {"2001:db7:ffff::", "2001:db8::", "2001:db8:ffff::", "2001:db9::"}, {"2001:ffff::", "2002::", "2002:ffff::", "2003::"},
		{"3ffe:ffff::", "3fff::", "3fff:fff:ffff::", "3fff:1000::"}, {"", "1fff:ffff::", "1fff:ffff::", "2000::"}, {"3fff:ffff::", "4000::", "4000::", ""},
		{"2a00::1:5efe:0:0", "2a00::5efe:1.2.3.4", "2a00::200:5efe:1.2.3.4", "2a00::100:5efe:1.2.3.4"}, {"2a00::5eff:0:0", "2a00::5efe:0:0", "2a00::5efe:ffff:ffff", "2a00::5ffe:0:0"},
	} {
		for i, s := range x {
			if s == "" {
				continue
			}
			want := i == 0 || i == 3
			a := netip.MustParseAddr(s)
			if Public(a) != want || a.Is4() && Public(netip.AddrFrom16(a.As16())) != want {
				t.Errorf("%s is public: %v", s, !want)
			}
		}
	}
	for in, want := range map[string]string{`"a"`: `"a"`, "a": `"a"`, `W/"a"`: `W/"a"`, "": `""`} {
		if got := QuoteETag(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
	if got := EscapePath("a b/ü%/?#"); got != "a%20b/%C3%BC%25/%3F%23" {
		t.Error(got)
	}
	for encoding := range strings.FieldsSeq("gzip x-gzip compress x-compress deflate br zstd dcb dcz bzip2 x-bzip2 xz lzma lz4 snappy") {
		for _, list := range []string{encoding, strings.ToUpper(encoding), "identity, " + encoding, encoding + ",aws-chunked"} {
			if err := CheckEncoding("s", "f", list); source.KindOf(err) != source.Corrupt || !strings.HasPrefix(err.Error(), "s: f: ") {
				t.Errorf("%s: %v", list, err)
			}
		}
	}
	// A chain of redirects ends, and each of them is checked.
	check := checkRedirect(NewHostTrust(func(string) string { return "" }))
	for _, x := range []struct {
		from, to string
		via      int
		ok       bool
	}{
		{"https", "https://a.example", 1, true}, {"https", "https://a.example", maxRedirects, true}, {"https", "https://a.example", maxRedirects + 1, false}, {"http", "https://a.example", 1, true},
		{"http", "http://a.example", 1, true}, {"https", "http://a.example", 1, false}, {"http", "ftp://a.example", 1, false}, {"https", "https://10.0.0.1", 1, false},
	} {
		u, _ := url.Parse(x.to)
		first := &http.Request{URL: &url.URL{Scheme: x.from, Host: "a.example"}}
		via := []*http.Request{first}
		for len(via) < x.via {
			via = append(via, &http.Request{URL: u})
		}
		if err := check(&http.Request{URL: u}, via); (err == nil) != x.ok || err != nil && source.KindOf(err) != source.Refused {
			t.Errorf("%+v: %v", x, err)
		}
		if err := checkRedirect(nil)(&http.Request{URL: u}, via); (err == nil) != (x.ok || x.to == "https://10.0.0.1") {
			t.Errorf("%+v, any host: %v", x, err)
		}
	}
}
