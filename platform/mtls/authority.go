package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"
)

// Valid is the lifetime of a certificate. It begins skew early, for clocks that differ.
const (
	Valid = 365 * 24 * time.Hour
	skew  = time.Hour
)

// Leaf is a certificate and its key, as PEM.
type Leaf struct{ Cert, Key []byte }

// Issued holds an authority's certificate and the leaves it signed, as PEM.
type Issued struct {
	Root   []byte
	Leaves map[string]Leaf // by name
}

// Issue creates an authority and signs a certificate for each name, valid for servers and
// clients. The authority's key is not kept.
func Issue(now time.Time, names ...string) (*Issued, error) { return IssueFor(Valid, now, names...) }

// IssueFor is Issue with another lifetime than Valid.
func IssueFor(lifetime time.Duration, now time.Time, names ...string) (*Issued, error) {
	root, key, _, err := newRoot(lifetime, now)
	if err != nil {
		return nil, err
	}
	out := &Issued{Root: certPEM(root.Raw), Leaves: map[string]Leaf{}}
	for i, name := range names {
		own, secret, err := NewKey()
		if err != nil {
			return nil, err
		}
		der, err := signLeaf(root, key, own.Public(), name, big.NewInt(now.UnixNano()+1+int64(i)), root.NotBefore, root.NotAfter)
		if err != nil {
			return nil, err
		}
		out.Leaves[name] = Leaf{Cert: certPEM(der), Key: secret}
	}
	return out, nil
}

// Old reports whether a certificate must be replaced: half of its lifetime is over, or it
// cannot be parsed.
func Old(cert []byte, now time.Time) bool {
	b, _ := pem.Decode(cert)
	if b == nil {
		return true
	}
	c, err := x509.ParseCertificate(b.Bytes)
	return err != nil || now.After(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore)/2))
}

// Identity holds the certificate that an end presents, and the roots that it trusts.
type Identity struct {
	Cert  tls.Certificate
	Roots *x509.CertPool
}

// Read parses an Identity from PEM. roots may hold several authorities.
func Read(roots []byte, leaf Leaf) (*Identity, error) {
	id := &Identity{Roots: x509.NewCertPool()}
	if !id.Roots.AppendCertsFromPEM(roots) {
		return nil, errors.New("there is no certificate of an authority")
	}
	var err error
	if id.Cert, err = tls.X509KeyPair(leaf.Cert, leaf.Key); err != nil {
		return nil, fmt.Errorf("the certificate of this end: %w", err)
	}
	return id, nil
}

// Server returns the configuration of a server that accepts client certificates of these
// names. of returns the identity for each connection.
func Server(of func() (*Identity, error), names ...string) *tls.Config {
	return server(of, tls.RequireAndVerifyClientCert, oneOf(names))
}

// OpenServer is Server for clients without a certificate too, whose Name is "".
func OpenServer(of func() (*Identity, error), names ...string) *tls.Config {
	return server(of, tls.VerifyClientCertIfGiven, oneOf(names))
}

// PeerServer is Server for the certificates of the authority that accept takes.
func PeerServer(of func() (*Identity, error), accept func(tls.ConnectionState) error) *tls.Config {
	return server(of, tls.RequireAndVerifyClientCert, accept)
}

// oneOf accepts certificates of these names.
func oneOf(names []string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if name := Name(&s); !slices.Contains(names, name) {
			return fmt.Errorf("the certificate is that of %.80q, not of %s", name, strings.Join(names, " or "))
		}
		return nil
	}
}

func server(of func() (*Identity, error), clients tls.ClientAuthType, accept func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			id, err := of()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
				Certificates: []tls.Certificate{id.Cert}, ClientCAs: id.Roots, ClientAuth: clients,
				SessionTicketsDisabled: true, // every connection is verified in full
				VerifyConnection: func(s tls.ConnectionState) error {
					if len(s.PeerCertificates) == 0 {
						return nil
					}
					return accept(s)
				},
			}, nil
		},
	}
}

// Client returns the configuration of a client that accepts the server of that name only.
func Client(id *Identity, server string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		Certificates: []tls.Certificate{id.Cert}, RootCAs: id.Roots, ServerName: server,
	}
}

// PeerClient returns the configuration of a client that accepts servers of the authority
// that accept takes, whatever their names are.
func PeerClient(id *Identity, accept func(tls.ConnectionState) error) *tls.Config {
	config := Client(id, "")
	config.InsecureSkipVerify = true // VerifyConnection checks the chain, and accept the name
	config.VerifyConnection = func(s tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		if _, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: id.Roots, Intermediates: between}); err != nil {
			return err
		}
		return accept(s)
	}
	return config
}

// Name is the name in the peer's certificate, "" if it presented none.
func Name(s *tls.ConnectionState) string {
	if s == nil || len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].DNSNames) == 0 {
		return ""
	}
	return s.PeerCertificates[0].DNSNames[0]
}

// Connect makes a TLS connection of conn, within 5 s; it closes conn if that fails.
func Connect(ctx context.Context, conn net.Conn, config *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// Connector returns Connect with the configuration that config makes for the identity of the
// moment.
func Connector(of func() (*Identity, error), config func(*Identity) *tls.Config) func(context.Context, net.Conn) (*tls.Conn, error) {
	return func(ctx context.Context, conn net.Conn) (*tls.Conn, error) {
		id, err := of()
		if err != nil {
			conn.Close()
			return nil, err
		}
		return Connect(ctx, conn, config(id))
	}
}

// Explain prefixes a certificate error with its cause in words; other errors are
// returned unchanged.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	why := ""
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		why = "its certificate is of an authority that is not believed here"
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		why = fmt.Sprintf("its certificate is that of %.80q, not of %.80q", strings.Join(e.Certificate.DNSNames, ", "), e.Host)
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		why = fmt.Sprintf("its certificate is good from %s to %s, and not now (compare the clocks)", e.Cert.NotBefore.UTC().Format(time.RFC3339),
			e.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" { // the type of e.Err is not exported
		why = map[string]string{
			"tls: bad certificate":               "it does not take our certificate: the name in it is not one that may come in, or it is damaged",
			"tls: expired certificate":           "it does not take our certificate: that has run out, by its clock",
			"tls: unknown certificate":           "it does not take our certificate",
			"tls: unknown certificate authority": "it does not take our certificate: it is of an authority that is not believed there",
			"tls: certificate required":          "it wants a certificate, and we have none",
		}[e.Err.Error()]
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		why = "it does not speak TLS"
	}
	if why == "" {
		return err
	}
	return fmt.Errorf("%s: %w", why, err)
}
