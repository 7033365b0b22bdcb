package httpsource

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPublic(t *testing.T) {
	for _, s := range []string{"1.1.1.1", "20.60.1.1", "99.255.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1", "2620:1ec::10", "::ffff:8.8.8.8"} {
		if !Public(netip.MustParseAddr(s)) {
			t.Errorf("%s is public", s)
		}
	}
	for _, s := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.0.1", "169.254.169.254", "168.63.129.16",
		"172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1",
		"2001::1", "2001:db8::1", "2001:10::1", "2001:20::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
		"2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:10.0.0.1",
	} {
		if Public(netip.MustParseAddr(s)) {
			t.Errorf("%s is not public", s)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

func TestLiteral(t *testing.T) {
	env := map[string]string{HostsVariable: "models.local, .intern.example ,10.1.0.0/16,192.168.7.7,minio:9000"}
	trust := NewHostTrust(func(k string) string { return env[k] }, "http://127.0.0.1:4566")
	for host, ok := range map[string]bool{
		"example.org": true, "models.local": true, "a.intern.example": true, "10.1.2.3": true, "192.168.7.7": true, "minio:9000": true, "127.0.0.1:4566": true, "1.1.1.1": true,
		"localhost": false, "x.localhost": false, "localhost.": false, "127.0.0.1": false, "127.0.0.1:4567": false, "10.2.0.1": false, "metadata.google.internal": false, "[::1]": false, "[::ffff:169.254.169.254]": false,
		"2130706433": false, "0177.0.0.1": false, "0x7f.1": false, "127.1": false, "0x7f000001": false, "192.168.7.8": false, "[fe80::1%25eth0]": false,
	} {
		u, err := url.Parse("https://" + host + "/x")
		if err != nil {
			t.Fatal(err)
		}
		if got := trust.CheckURL(u) == nil; got != ok {
			t.Errorf("%s: %v", host, got)
		}
	}
}

// Names of the private network are refused before they are looked up, unless a network is
// allowed, whose addresses they may have.
func TestPrivateNames(t *testing.T) {
	for hosts, allowed := range map[string]bool{"": false, "minio:9000,.example.org": false, "10.1.0.0/16": true} {
		trust := NewHostTrust(func(k string) string { return map[string]string{HostsVariable: hosts}[k] })
		for _, host := range []string{"minio:9001", "kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local.", "printer.local", "nas.home.arpa"} {
			u, err := url.Parse("https://" + host + "/x")
			if err != nil {
				t.Fatal(err)
			}
			if got := trust.CheckURL(u) == nil; got != allowed {
				t.Errorf("%s where %q is allowed: %v", host, hosts, got)
			}
		}
	}
}

func TestDialIsGuarded(t *testing.T) {
	hits := 0
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits++ }))
	defer srv.Close()
	get := func(trust *HostTrust) error {
		c := Client(Options{Trust: trust, Follow: true})
		defer c.CloseIdleConnections()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/?sig=CANARY", nil)
		r, err := c.Do(req)
		if err != nil {
			return Network(t.Context(), "here", "x", err)
		}
		r.Body.Close()
		return nil
	}
	none := func(string) string { return "" }
	err := get(NewHostTrust(none))
	if source.KindOf(err) != source.Refused || !strings.Contains(err.Error(), HostsVariable) || strings.Contains(err.Error(), "CANARY") ||
		hits != 0 {
		t.Errorf("untrusted: %v, %d hits", err, hits)
	}
	if err := get(NewHostTrust(none, srv.URL)); err != nil || hits != 1 {
		t.Errorf("trusted: %v, %d hits", err, hits)
	}
}

// nameServer is a resolver of names that are not literal addresses: each look-up of a name
// takes the next of its addresses, and the last one again and again.
type nameServer struct {
	mu      sync.Mutex
	answers map[string][]string
}

func (n *nameServer) next(name string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.answers[name]
	if len(list) == 0 {
		return netip.Addr{}, false
	}
	if len(list) > 1 {
		n.answers[name] = list[1:]
	}
	return netip.MustParseAddr(list[0]), true
}

func (n *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe() // as TCP: each message has its length before it
		go func() {
			defer server.Close()
			for {
				var size [2]byte
				if _, err := io.ReadFull(server, size[:]); err != nil {
					return
				}
				question := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(server, question); err != nil {
					return
				}
				answer := n.answer(question)
				if _, err := server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

func (n *nameServer) answer(question []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	head.Response, head.RCode = true, dnsmessage.RCodeSuccess
	m := dnsmessage.Message{Header: head, Questions: []dnsmessage.Question{q}}
	resource := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
	name := strings.TrimSuffix(q.Name.String(), ".")
	is6 := strings.HasPrefix(name, "six.")
	switch {
	case q.Type == dnsmessage.TypeA && !is6:
		if a, ok := n.next(name); ok {
			m.Answers = []dnsmessage.Resource{{Header: resource, Body: &dnsmessage.AResource{A: a.As4()}}}
		}
	case q.Type == dnsmessage.TypeAAAA && is6:
		if a, ok := n.next(name); ok {
			m.Answers = []dnsmessage.Resource{{Header: resource, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}}}
		}
	}
	b, _ := m.Pack()
	return b
}

// a name whose look-up gives an address of the operator's network is not dialled, also
// where a redirect leads there, or where an earlier look-up gave an address that is allowed.
func TestNamesOfPrivateAddresses(t *testing.T) {
	var inside, outside atomic.Int64
	private := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside.Add(1) }))
	defer private.Close()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(private.URL, "http://"))
	other, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		testkit.Missing(t, "a second address of loopback:", err)
	}
	allowed := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outside.Add(1)
		w.Header().Set("Connection", "close") // the next request is looked up again
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, "http://"+to+":"+port+"/weights", http.StatusFound)
		}
	})}
	go allowed.Serve(other)
	defer allowed.Close()
	names := &nameServer{answers: map[string][]string{
		"good.example": {"127.0.0.2"}, "loopback.example": {"127.0.0.1"}, "net.example": {"10.0.0.7"}, "metadata.example": {"169.254.169.254"}, "shared.example": {"100.64.1.1"},
		"six.loopback.example": {"::1"}, "six.mapped.example": {"::ffff:127.0.0.1"}, "six.unique.example": {"fd00:ec2::254"}, "six.link.example": {"fe80::1"},
		"rebinds.example": {"127.0.0.2", "127.0.0.1"},
	}}
	c := Client(Options{Trust: NewHostTrust(func(k string) string { return map[string]string{HostsVariable: "127.0.0.2"}[k] }), Follow: true, resolver: names.resolver()})
	defer c.CloseIdleConnections()
	get := func(url string) error {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		r, err := c.Do(req)
		if err != nil {
			return Network(t.Context(), "here", "", err)
		}
		return r.Body.Close()
	}
	for _, row := range []struct {
		url  string
		kind source.Kind
		asks int64 // of the allowed server
	}{
		{"http://good.example:" + port, "", 1},
		{"http://loopback.example:" + port, source.Refused, 0},
		{"http://net.example:" + port, source.Refused, 0},
		{"http://metadata.example", source.Refused, 0},
		{"http://shared.example:" + port, source.Refused, 0},
		{"http://six.loopback.example:" + port, source.Refused, 0},
		{"http://six.mapped.example:" + port, source.Refused, 0},
		{"http://six.unique.example:" + port, source.Refused, 0},
		{"http://six.link.example:" + port, source.Refused, 0},
		{"http://good.example:" + port + "/?to=good.example", "", 2},
		{"http://good.example:" + port + "/?to=loopback.example", source.Refused, 1},
		{"http://good.example:" + port + "/?to=metadata.google.internal", source.Refused, 1},
		{"http://rebinds.example:" + port, "", 1},
		{"http://rebinds.example:" + port, source.Refused, 0},
	} {
		err := get(row.url)
		if source.KindOf(err) != row.kind || outside.Swap(0) != row.asks || inside.Load() != 0 {
			t.Errorf("%s: %v, %d requests inside", row.url, err, inside.Load())
		}
	}
}

func TestRedirects(t *testing.T) {
	var to string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/end" {
			return
		}
		http.Redirect(w, r, to, http.StatusFound)
	}))
	defer srv.Close()
	c := Client(Options{Trust: NewHostTrust(func(string) string { return "" }, srv.URL), Follow: true})
	defer c.CloseIdleConnections()
	for target, kind := range map[string]source.Kind{"/end": "", "/again": source.Refused, "http://169.254.169.254/latest": source.Refused, "http://localhost/": source.Refused, "ftp://x/": source.Refused} {
		to = target
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/", nil)
		r, err := c.Do(req)
		if err == nil {
			r.Body.Close()
		} else {
			err = Network(t.Context(), "here", "", err)
		}
		if source.KindOf(err) != kind {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// TestRedirectKeepsEncryption: a redirect from https to http is refused before the second
// server is asked, also after one to https.
func TestRedirectKeepsEncryption(t *testing.T) {
	var plain atomic.Int64
	clear := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { plain.Add(1) }))
	defer clear.Close()
	var secure *httptest.Server
	secure = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/clear":
			http.Redirect(w, r, clear.URL+"/weights", http.StatusFound)
		case "/twice":
			http.Redirect(w, r, secure.URL+"/clear", http.StatusFound)
		}
	}))
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for name, trust := range map[string]*HostTrust{"any host": nil, "both hosts": NewHostTrust(func(string) string { return "" }, secure.URL, clear.URL)} {
		c := Client(Options{Trust: trust, Follow: true, Roots: roots})
		for path, kind := range map[string]source.Kind{"/end": "", "/clear": source.Refused, "/twice": source.Refused} {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, secure.URL+path, nil)
			r, err := c.Do(req)
			if err == nil {
				r.Body.Close()
			} else {
				err = Network(t.Context(), "here", "", err)
			}
			if source.KindOf(err) != kind || plain.Load() != 0 {
				t.Errorf("%s, %s: %v, %d requests in the clear", name, path, err, plain.Swap(0))
			}
		}
		c.CloseIdleConnections()
	}
}

func TestRange(t *testing.T) {
	body := []byte("0123456789")
	for _, tc := range []struct {
		name string
		h    func(w http.ResponseWriter)
		kind source.Kind
	}{
		{"right", func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 2-5/10")
			w.Header().Set("ETag", `"v1"`)
			w.WriteHeader(206)
			_, _ = w.Write(body[2:6])
		}, ""},
		{"whole file", func(w http.ResponseWriter) { _, _ = w.Write(body) }, source.Malformed},
		{"another range", func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 0-3/10")
			w.WriteHeader(206)
			_, _ = w.Write(body[:4])
		}, source.Malformed},
		{"another size", func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 2-5/11")
			w.WriteHeader(206)
			_, _ = w.Write(body[2:6])
		}, source.Malformed},
		{"longer", func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 2-5/10")
			w.WriteHeader(206)
			_, _ = w.Write(body[2:8])
		}, source.Malformed},
		{"another version", func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 2-5/10")
			w.Header().Set("ETag", `"v2"`)
			w.WriteHeader(206)
			_, _ = w.Write(body[2:6])
		}, source.Changed},
		{"encoded", func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 2-5/10")
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(206)
		}, source.Corrupt},
		{"busy", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "3"); w.WriteHeader(503) }, source.Unavailable},
		{"gone", func(w http.ResponseWriter) { w.WriteHeader(404) }, source.NotFound},
		{"no", func(w http.ResponseWriter) { w.WriteHeader(403) }, source.Denied},
		{"precondition", func(w http.ResponseWriter) { w.WriteHeader(412) }, source.Changed},
		{"redirect", func(w http.ResponseWriter) { w.Header().Set("Location", "/x"); w.WriteHeader(302) }, source.Refused},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "bytes=2-5" || r.Header.Get("If-Match") != `"v1"` {
				t.Errorf("headers %v", r.Header)
			}
			tc.h(w)
		}))
		c := Client(Options{})
		rc, _, err := Range(t.Context(), c, RangeRequest{URL: srv.URL, Source: "s", File: source.File{Name: "f", Size: 10}, Offset: 2, Length: 4, ETag: `"v1"`})
		if source.KindOf(err) != tc.kind {
			t.Errorf("%s: %v", tc.name, err)
		}
		if e, ok := errors.AsType[*source.Error](err); ok && tc.name == "busy" && e.RetryAfter != 3*time.Second {
			t.Errorf("%s: waits %v", tc.name, e.RetryAfter)
		}
		if err == nil {
			b := make([]byte, 4)
			if err := ReadFull(t.Context(), rc, b, RangeRequest{}); err != nil || string(b) != "2345" {
				t.Errorf("%s: %q, %v", tc.name, b, err)
			}
			rc.Close()
		}
		c.CloseIdleConnections()
		srv.Close()
	}
}

func TestCallerDisconnects(t *testing.T) {
	gone := fmt.Errorf("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := Network(ctx, "s", "f", errors.New("x")); !errors.Is(err, gone) {
		t.Error(err)
	}
}

// TestEndpoints: an endpoint and a proxy are trusted at the port where they are dialled, and
// at no other.
func TestEndpoints(t *testing.T) {
	trust := NewHostTrust(func(k string) string {
		return map[string]string{"HTTPS_PROXY": "proxy-a", "https_proxy": "https://proxy-b", "HTTP_PROXY": "proxy-c:3128", "http_proxy": "http://proxy-d",
			"ALL_PROXY": "socks5://proxy-e", "all_proxy": "socks5://proxy-f:9"}[k]
	}, "", "http://A.example", "https://b.example/x", "c.example:9000", "http://[::1]:8")
	for address, want := range map[string]bool{
		"http://a.example": true, "https://a.example": false, "https://b.example": true, "http://b.example": false, "http://c.example:9000": true, "http://c.example": false, "http://[::1]:8": true, "http://[::1]:9": false,
		"http://proxy-a": true, "https://proxy-b": true, "http://proxy-c:3128": true, "http://proxy-d": true, "http://proxy-e:1080": true, "http://proxy-f:9": true, "http://proxy-g": false, "http://a.example.:80": true,
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if trust.Trusts(u) != want {
			t.Errorf("%s: %v", address, !want)
		}
		if err := trust.CheckURL(u); err != nil {
			if e, _ := errors.AsType[*source.Error](err); e == nil || !strings.Contains(e.Fix, HostsVariable) {
				t.Errorf("%s: no way out of %v", address, err)
			}
		}
	}
}

// TestDials: a dial of a public name reaches no address of this machine, and one of loopback no
// other; the error says which it was.
func TestDials(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	addr := srv.Listener.Addr().String()
	none := func(string) string { return "" }
	for name, dial := range map[string]func(addr string) (net.Conn, error){
		"public": func(addr string) (net.Conn, error) {
			return NewHostTrust(none).DialPublic(t.Context(), net.Dialer{}, "tcp", addr)
		},
		"trusted": func(addr string) (net.Conn, error) {
			return NewHostTrust(none, addr).DialPublic(t.Context(), net.Dialer{}, "tcp", addr)
		},
		"loopback": func(addr string) (net.Conn, error) { return DialLoopback(t.Context(), net.Dialer{}, addr) },
	} {
		c, err := dial(addr)
		if (err == nil) != (name != "public") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.Close()
		} else if at, ok := IsRefused(err); !ok || at != netip.MustParseAddr("127.0.0.1") || !strings.Contains(err.Error(), HostsVariable) {
			t.Errorf("%s: %v, %v, %v", name, at, ok, err)
		}
		if _, err := dial("no port"); err == nil {
			t.Errorf("%s: an address without a port", name)
		}
	}
	if _, err := DialLoopback(t.Context(), net.Dialer{}, "192.0.2.1:80"); err == nil {
		t.Error("another machine was dialled")
	} else if at, ok := IsRefused(err); !ok || at != netip.MustParseAddr("192.0.2.1") {
		t.Error(err)
	}
	if _, ok := IsRefused(io.EOF); ok {
		t.Error("another error is a refusal")
	}
}

func TestTrusts(t *testing.T) {
	trust := NewHostTrust(func(k string) string {
		return map[string]string{HostsVariable: "models.lan, gate.lan:8000, .corp.example, 10.0.0.0/8"}[k]
	})
	for s, want := range map[string]bool{
		"http://models.lan/v1": true, "http://MODELS.lan:9000": true, "http://gate.lan:8000": true, "http://gate.lan": false, "http://a.corp.example": true, "http://corp.example": false,
		"http://10.1.2.3:80": true, "http://11.1.2.3": false, "http://[::ffff:10.1.2.3]": true, "http://models.lan.example": false,
	} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := trust.Trusts(u); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}
