package mtls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"
)

// Valid is how long a certificate is good. Clocks may be apart by skew.
const (
	Valid = 365 * 24 * time.Hour
	skew  = time.Hour
)

// Leaf is a certificate and its key, as PEM.
type Leaf struct{ Cert, Key []byte }

// Issued is what an authority has signed, and its own certificate, as PEM.
type Issued struct {
	Root   []byte
	Leaves map[string]Leaf // by name
}

// Issue makes an authority and a certificate of it for each name, good for both ends
// of a connection.
func Issue(now time.Time, names ...string) (*Issued, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "thaw"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(Valid),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if root, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	out := &Issued{Root: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Leaves: map[string]Leaf{}}
	for i, name := range names {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(now.UnixNano() + 1 + int64(i)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: root.NotBefore, NotAfter: root.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, own.Public(), key)
		if err != nil {
			return nil, err
		}
		secret, err := x509.MarshalPKCS8PrivateKey(own)
		if err != nil {
			return nil, err
		}
		out.Leaves[name] = Leaf{
			Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
		}
	}
	return out, nil
}

// Old reports whether it is time for another certificate: half of its life is over,
// or it does not read.
func Old(cert []byte, now time.Time) bool {
	b, _ := pem.Decode(cert)
	if b == nil {
		return true
	}
	c, err := x509.ParseCertificate(b.Bytes)
	return err != nil || now.After(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore)/2))
}

// Identity is what one end shows, and whom it believes.
type Identity struct {
	Cert  tls.Certificate
	Roots *x509.CertPool
}

// Read makes one of PEM: roots is one authority or several.
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

// Server accepts connections whose client certificate has one of the names. of returns
// the identity for each connection.
func Server(of func() (*Identity, error), names ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			id, err := of()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
				Certificates: []tls.Certificate{id.Cert}, ClientCAs: id.Roots, ClientAuth: tls.RequireAndVerifyClientCert,
				SessionTicketsDisabled: true, // each connection is checked anew
				VerifyConnection: func(s tls.ConnectionState) error {
					if who := Name(&s); !slices.Contains(names, who) {
						return fmt.Errorf("the certificate is that of %.80q, not of %s", who, strings.Join(names, " or "))
					}
					return nil
				},
			}, nil
		},
	}
}

// Client is how a connection to the one of that name begins.
func Client(id *Identity, server string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		Certificates: []tls.Certificate{id.Cert}, RootCAs: id.Roots, ServerName: server,
	}
}

// Name is whose certificate the other end of a connection has shown, "" where it has
// shown none.
func Name(s *tls.ConnectionState) string {
	if s == nil || len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].DNSNames) == 0 {
		return ""
	}
	return s.PeerCertificates[0].DNSNames[0]
}

// Explain says what is wrong with a certificate in words; an error that is about
// something else stays as it is.
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
		why = fmt.Sprintf("its certificate is good from %s to %s, and not now", e.Cert.NotBefore.UTC().Format(time.RFC3339), e.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" { // the type of e.Err is the library's own
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
