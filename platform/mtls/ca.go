package mtls

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/durable"
)

// caKeyFile holds the key of a CA, beside RootFile.
const caKeyFile = "ca.key"

// validCA is the lifetime of a CA's own certificate.
const validCA = 10 * Valid

// CA is an authority that keeps its key, in a folder, and signs certificates one by one.
type CA struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte

	mu  sync.Mutex
	own map[string]*Identity // made by Identity, by name
}

// OpenCA reads the authority of a folder, or makes it.
func OpenCA(dir string, now time.Time) (*CA, error) {
	cert, err := os.ReadFile(filepath.Join(dir, RootFile))
	if errors.Is(err, fs.ErrNotExist) {
		return makeCA(dir, now)
	}
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil {
		return nil, damagedCA(dir, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, damagedCA(dir, err)
	}
	private, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, damagedCA(dir, errors.New("they hold no authority of thaw"))
	}
	return &CA{root: pair.Leaf, key: private, pem: cert, own: map[string]*Identity{}}, nil
}

// damagedCA is the error of the files of an authority that cannot be used.
func damagedCA(dir string, err error) error {
	return fmt.Errorf("the authority in %s (%s and %s): %w; bring both files back from a backup, or move the folder away: "+
		"a new authority is made, and every agent has to join again", dir, RootFile, caKeyFile, err)
}

func makeCA(dir string, now time.Time) (*CA, error) {
	root, key, secret, err := newRoot(validCA, now)
	if err != nil {
		return nil, err
	}
	c := &CA{root: root, key: key, pem: certPEM(root.Raw), own: map[string]*Identity{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := durable.WriteFile(filepath.Join(dir, caKeyFile), secret, 0o600); err != nil {
		return nil, err
	}
	return c, durable.WriteFile(filepath.Join(dir, RootFile), c.pem, 0o600)
}

// Root is the authority's certificate, as PEM.
func (c *CA) Root() []byte { return c.pem }

func (c *CA) Fingerprint() string { return Fingerprint(c.root) }

// Fingerprint is the SHA-256 of a certificate, in hex.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// Sign returns a certificate, as PEM, for the holder of a key.
func (c *CA) Sign(key crypto.PublicKey, name string, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	der, err := signLeaf(c.root, c.key, key, name, serial, now.Add(-skew), now.Add(Valid))
	if err != nil {
		return nil, err
	}
	return certPEM(der), nil
}

// Identity returns the identity of a process beside the authority, renewed when its
// certificate is old. It presents the authority's certificate too, so that a peer that
// knows only the Fingerprint can check it.
func (c *CA) Identity(name string, now time.Time) (*Identity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := c.own[name]; id != nil && !Old(certPEM(id.Cert.Certificate[0]), now) {
		return id, nil
	}
	key, secret, err := NewKey()
	if err != nil {
		return nil, err
	}
	cert, err := c.Sign(key.Public(), name, now)
	if err != nil {
		return nil, err
	}
	id, err := Read(c.pem, Leaf{Cert: append(cert, c.pem...), Key: secret})
	if err == nil {
		c.own[name] = id
	}
	return id, err
}

// ErrOtherServer means that a server's authority is not the one that is pinned.
var ErrOtherServer = errors.New("the server is not the one that made the token: its authority has another fingerprint")

// Pinned returns the configuration of a client that has no certificate yet and knows of the
// server only its name and the fingerprint of its authority.
func Pinned(fingerprint, server string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, ServerName: server,
		InsecureSkipVerify: true, // VerifyConnection checks the chain up to the authority of that fingerprint
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates[1:] {
				if Fingerprint(c) != fingerprint {
					continue
				}
				roots := x509.NewCertPool()
				roots.AddCert(c)
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: server})
				return err
			}
			return ErrOtherServer
		},
	}
}

func newRoot(lifetime time.Duration, now time.Time) (root *x509.Certificate, key *ecdsa.PrivateKey, secret []byte, err error) {
	key, secret, err = NewKey()
	if err != nil {
		return nil, nil, nil, err
	}
	root = &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "thaw"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, nil, nil, err
	}
	root, err = x509.ParseCertificate(der)
	return root, key, secret, err
}

// signLeaf returns a certificate of an authority for servers and clients, as DER.
func signLeaf(root *x509.Certificate, by *ecdsa.PrivateKey, key crypto.PublicKey, name string, serial *big.Int, from,
	until time.Time) ([]byte, error) {
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, root, key, by)
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// NewKey makes a private key; secret is the same as PEM.
func NewKey() (key *ecdsa.PrivateKey, secret []byte, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}
