package httpsource

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// certificate is signed by itself.
func certificate(t *testing.T, host string, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Our own CA"}, DNSNames: []string{host}, NotBefore: until.Add(-time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// TestTLSMistakes: a certificate that is not taken, and a port without TLS, are no fault of the
// network: the error says what is wrong and the way out, and it is not tried again.
func TestTLSMistakes(t *testing.T) {
	quiet := log.New(io.Discard, "", 0)
	serve := func(start func(*httptest.Server)) string {
		srv := httptest.NewUnstartedServer(http.NotFoundHandler())
		srv.Config.ErrorLog = quiet
		start(srv)
		t.Cleanup(srv.Close)
		return srv.Listener.Addr().String()
	}
	secure := func(c tls.Certificate) string {
		return serve(func(s *httptest.Server) {
			s.TLS = &tls.Config{Certificates: []tls.Certificate{c}}
			s.StartTLS()
		})
	}
	trusts := func(c tls.Certificate) *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AddCert(c.Leaf)
		return pool
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n")
			c.Close()
		}
	}()
	good, old := certificate(t, "models.example", time.Now().Add(time.Hour)), certificate(t, "models.example", time.Now().Add(-time.Hour))
	for _, x := range []struct {
		name, addr, host string
		roots            *x509.CertPool
		want, fix        string
	}{
		{"self-signed", secure(good), "models.example", x509.NewCertPool(), `an authority that this machine does not know ("CN=Our own CA")`, "add its CA"},
		{"self-signed, the system's authorities", secure(good), "models.example", nil, "does not know", "SSL_CERT_FILE"},
		{"another name", secure(good), "weights.example", trusts(good), `its certificate is not for "weights.example"`, "a name that is in the certificate"},
		{"expired", secure(old), "models.example", trusts(old), "has expired", "clock"},
		{"a plain HTTP server", serve((*httptest.Server).Start), "models.example", nil, "the port answers without TLS", "http://"},
		{"TLS 1.1", serve(func(s *httptest.Server) {
			s.TLS = &tls.Config{Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
			s.StartTLS()
		}), "models.example", trusts(good), "protocol version not supported", "has to speak TLS 1.2 or newer"},
		{"a server of something else", l.Addr().String(), "models.example", nil, "does not speak TLS", "its TLS port"},
	} {
		client := Client(Options{Roots: x.roots, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, x.addr)
		}})
		body, _, err := Range(t.Context(), client, RangeRequest{URL: "https://" + x.host + "/weights?sig=CANARY", Source: "s", File: source.File{Name: "f", Size: 10}, Length: 10})
		if err == nil {
			body.Close()
		}
		if source.KindOf(err) != source.Refused || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), x.fix) ||
			strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", x.name, err)
		}
		client.CloseIdleConnections()
	}
}
