package p2p

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// TLS authenticates both ends of every exchange between nodes.
type TLS struct {
	// Server is the configuration of Serve's connections: only nodes may connect.
	Server *tls.Config
	// Connect makes a TLS connection to another node of conn; it closes conn if that fails.
	Connect func(ctx context.Context, conn net.Conn) (*tls.Conn, error)
	// Identify returns the ID of the node whose certificate a connection shows, "" where
	// nodes have one certificate together, or an error if it is no node's any more. It is
	// called for each request, at both ends; nil returns "".
	Identify func(*tls.ConnectionState) (id string, err error)
}

// VisitorPrefix begins the ID of a process that only reads from nodes, such as thaw pull. It
// shows the certificate of a node of its machine. No node's ID holds a dot.
const VisitorPrefix = "pull."

// errCertificate means that the other end's certificate is not that of the node it claims
// to be.
var errCertificate = errors.New("its certificate is that of another node")

// identify returns the ID of the other end of a connection; "" means any.
func (t *TLS) identify(state *tls.ConnectionState) (string, error) {
	switch {
	case t == nil:
		return "", nil
	case state == nil:
		return "", errors.New("the connection is plain HTTP")
	case t.Identify == nil:
		return "", nil
	}
	return t.Identify(state)
}

// mayClaim reports whether the holder of the certificate of a node may announce itself as id.
func mayClaim(id, certified string) bool {
	return certified == "" || id == certified || strings.HasPrefix(id, VisitorPrefix)
}

// secureTransport sends requests over TLS only, and checks the other end at each answer.
type secureTransport struct {
	*http.Transport
	tls *TLS
}

func newSecureTransport(t *http.Transport, secure *TLS) *secureTransport {
	dial := t.DialContext
	t.Proxy = nil // a proxy would see which nodes exchange what
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return secure.Connect(ctx, conn)
	}
	return &secureTransport{t, secure}
}

func (s *secureTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("the node %s is not asked over plain HTTP: want https://HOST:PORT", req.URL.Host)
	}
	r, err := s.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if _, err := s.tls.identify(r.TLS); err != nil {
		r.Body.Close()
		return nil, err
	}
	return r, nil
}
