package httpsource

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// slow is an error that took too long.
type slow struct{ error }

func (slow) Timeout() bool   { return true }
func (slow) Temporary() bool { return false }

// TestRecordOfNoAnswers: what is made of a request's error, whatever it is.
func TestRecordOfNoAnswers(t *testing.T) {
	named := func(name string) *x509.Certificate { return &x509.Certificate{Issuer: pkix.Name{CommonName: name}} }
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	far := &net.TCPAddr{}
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	var out strings.Builder
	for _, err := range []error{
		http.ErrSchemeMismatch, tls.RecordHeaderError{Msg: "no TLS", Conn: here}, tls.RecordHeaderError{Msg: "no record"},
		x509.UnknownAuthorityError{}, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		&tls.CertificateVerificationError{UnverifiedCertificates: []*x509.Certificate{named("between"), named("root")}, Err: x509.UnknownAuthorityError{}},
		&tls.CertificateVerificationError{UnverifiedCertificates: []*x509.Certificate{named(strings.Repeat("long ", 100))}, Err: x509.UnknownAuthorityError{}},
		x509.HostnameError{Certificate: named("x"), Host: "models.example"}, x509.CertificateInvalidError{Reason: x509.Expired}, x509.CertificateInvalidError{Reason: x509.TooManyIntermediates},
		&net.DNSError{Name: "models.example", IsNotFound: true}, &net.DNSError{Name: "models.example", IsTimeout: true, IsTemporary: true}, &net.DNSError{Name: "models.example"},
		dial(errors.New("connection refused")), dial(nil), &net.OpError{Op: "read", Addr: far, Err: slow{errors.New("i/o timeout")}}, slow{errors.New("too slow")},
		io.EOF, io.ErrUnexpectedEOF, errors.New("x509: certificate of some other fault"), errors.New("?sig=CANARY"),
		refusedAddr{netip.MustParseAddr("10.0.0.1")},
		&source.Error{Kind: source.Refused, Source: "other", File: "other", Detail: "redirects too often", Fix: "do so"},
	} {
		err = &url.Error{Op: "Get", URL: "https://models.example/?sig=CANARY", Err: err}
		got := Network(t.Context(), "s", "f", err)
		fmt.Fprintf(&out, "%s %s\n", source.KindOf(got), got)
		if strings.Contains(got.Error(), "CANARY") {
			t.Error(got)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	if cancel(over); Network(ctx, "s", "f", io.EOF) != over {
		t.Error("an ended context is not the cause")
	}
	sourcetest.Compare(t, "noanswers.txt", out.String())
}

// TestRecordOfWords: which bodies of refusals are repeated, by status and type.
func TestRecordOfWords(t *testing.T) {
	a := strings.Repeat
	var out strings.Builder
	for _, x := range []struct {
		status     int
		media, has string
	}{
		{400, "text/plain", "the clock is wrong"}, {403, "text/plain; charset=utf-8", " not from here\n"}, {499, "text/plain", "no"}, {500, "text/plain", "disk full"}, {399, "text/plain", "moved"}, {302, "text/plain", "moved"}, {200, "text/plain", "fine"},
		{400, "text/html", "no"}, {400, "", "no"}, {400, "text/plain", ""}, {400, "text/plain", "two\nlines"}, {400, "text/plain", "n\u00f6"}, {400, "text/plain", "a/b"}, {400, "text/plain", "a=b"}, {400, "text/plain", "a&b"}, {400, "text/plain", "a?b"},
		{400, "text/plain", "a%b"}, {400, "text/plain", "a+b"}, {400, "text/plain", "a@b"}, {400, "text/plain", "a~b!"}, {400, "text/plain", a("a", 30) + " b"}, {400, "text/plain", a("a", 31) + " b"},
		{400, "text/plain", a("ab ", 66) + "c"}, {400, "text/plain", a("ab ", 66) + "cd"}, {400, "text/plain", a("ab ", 100)},
	} {
		r, _ := answer(t.Context(), x.status, strings.NewReader(x.has), int64(len(x.has)), "Content-Type", x.media)
		e := Status(r, "s", "")
		if rest, err := io.ReadAll(r.Body); err != nil || string(rest) != x.has {
			t.Errorf("%d %q: the body is %q afterwards, %v", x.status, x.has, rest, err)
		}
		fmt.Fprintf(&out, "%d %s %d bytes %.40q: %s\n", x.status, x.media, len(x.has), x.has, e.Detail)
	}
	for _, body := range []string{
		`<?xml version="1.0"?><Error><Code>a</Code><Message>The reason.</Message></Error>`, "\ufeff\n<Error><Message>one\ntwo</Message></Error>", "<html><body>no</body></html>",
		"<!DOCTYPE html><HTML><head><Title lang=en>Just a\n  moment&hellip; </title></head></html>", "<html><title></title></html>", "<html><title>of CANARYkey</title></html>",
		"<Error><Message>of CANARYkey</Message></Error>", "<Error><Message>https://x/?X-Amz-Signature=1</Message></Error>", "<Error><Message>of CANARYsession</Message></Error>", "<Error><Message>of CANARY/query</Message></Error>",
		`{"error":{"message":"The reason","code":403}}`, `{"error":"the reason"}`, `{"message":"the reason"}`, `{"detail":"the reason"}`, `{"errors":[{"status":403,"message":"the reason"}]}`, `[]`, `{"error":{}}`, `{"error":[[[["deep"]]]]}`, `{"error`,
		`{"Code":10010205001,"Message":"the reason","Success":false}`, `{"code":1,"msg":"the reason"}`, `{"message":"","Message":"the reason"}`,
		`{"error":"invalid_grant","error_description":"the reason"}`,
	} {
		r, _ := answer(t.Context(), 403, strings.NewReader(body), int64(len(body)), "Content-Type", "application/octet-stream")
		r.Request.Header = http.Header{"Authorization": {"AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=CANARYkey"},
			"X-Amz-Security-Token": {"CANARYsession"}}
		r.Request.URL.RawQuery = "prefix=reason&X-Amz-Signature=CANARY%2Fquery"
		e := Status(r, "s", "")
		if strings.Contains(e.Detail, "CANARY") {
			t.Errorf("%s: %s", body, e.Detail)
		}
		fmt.Fprintf(&out, "403 %.80q: %s\n", body, e.Detail)
	}
	hub, _ := answer(t.Context(), 403, strings.NewReader("<html>"), 6, "X-Error-Message",
		"Please enable access to public gated repositories in your fine-grained token settings.")
	fmt.Fprintf(&out, "403 of the hub: %s\n", Status(hub, "s", "").Detail)
	r, _ := answer(t.Context(), 400, io.MultiReader(strings.NewReader("half of "), brokenReader{}), -1, "Content-Type", "text/plain")
	fmt.Fprintf(&out, "400 text/plain that breaks: %s\n", Status(r, "s", "").Detail)
	sourcetest.Compare(t, "words.txt", out.String())
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestClient: requests ask for no compression and go over HTTP/1.1, each with a connection of
// its own, which is kept; a redirect is followed only where that is asked for.
func TestClient(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 || r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("%s with %v", r.Proto, r.Header)
		}
		if r.URL.Path == "/from" {
			http.Redirect(w, r, "/to", http.StatusFound)
		}
	}))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	trust := NewHostTrust(func(name string) string { return map[string]string{HostsVariable: "127.0.0.1"}[name] })
	for follow, want := range map[bool]int{true: 200, false: 302} {
		c := Client(Options{Trust: trust, Follow: follow, Roots: roots})
		r, err := c.Get(srv.URL + "/from")
		if err != nil || r.StatusCode != want {
			t.Errorf("follow %v: %+v, %v", follow, r, err)
		}
		r.Body.Close()
		tr := c.Transport.(*http.Transport)
		if tr.MaxConnsPerHost != Conns || tr.MaxIdleConnsPerHost != Conns || tr.MaxIdleConns != 0 || tr.IdleConnTimeout <= 0 || tr.Proxy == nil {
			t.Errorf("%+v", tr)
		}
		c.CloseIdleConnections()
	}
}

// TestMappedAddresses: an address of IPv4 written as one of IPv6 is that of IPv4.
func TestMappedAddresses(t *testing.T) {
	trust := NewHostTrust(func(name string) string { return map[string]string{HostsVariable: "10.0.0.0/8"}[name] })
	for addr, ok := range map[string]bool{"::ffff:10.1.2.3": true, "10.1.2.3": true, "::ffff:11.1.2.3": true, "::ffff:192.168.1.1": false, "fe80::1%eth0": false, "::ffff:127.0.0.1": false} {
		if err := trust.checkAddr(netip.MustParseAddr(addr)); (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// TestUploadThatIsShort: a body that ends early is the fault of this machine, not of the network.
func TestUploadThatIsShort(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer srv.Close()
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	b := Bucket{"s3", "b", "p"}
	for size, want := range map[int64]source.Kind{3: "", 4: source.Broken} {
		req, err := b.NewUpload(t.Context(), http.MethodPut, srv.URL+"/?sig=CANARY", "f", strings.NewReader("abc"), size)
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Upload(srv.Client(), req, "f")
		if source.KindOf(err) != want || want != "" && err.Error() != "s3://b/p: f: is shorter than announced" {
			t.Errorf("%d bytes of 3: %v", size, err)
		}
		if err == nil {
			r.Body.Close()
		}
	}
}

// TestRedirectsLeaveEncryptionNever: what began without TLS and came to a server with it does
// not go back.
func TestRedirectsLeaveEncryptionNever(t *testing.T) {
	var secure *httptest.Server
	var asked []string
	clear := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked = append(asked, r.URL.Path); r.URL.Path == "/up" {
			http.Redirect(w, r, secure.URL+"/down", http.StatusFound)
		}
	}))
	defer clear.Close()
	secure = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, clear.URL+"/weights", http.StatusFound)
	}))
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	c := Client(Options{Follow: true, Roots: roots})
	defer c.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, clear.URL+"/up", nil)
	r, err := c.Do(req)
	if err == nil {
		r.Body.Close()
	} else {
		err = Network(t.Context(), "s", "", err)
	}
	if source.KindOf(err) != source.Refused || len(asked) != 1 {
		t.Errorf("%v, asked for %q without TLS", err, asked)
	}
}
