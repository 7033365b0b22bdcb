package place

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"time"
)

// valid is how long a certificate is good; it is replaced at half of that. Clocks
// may be apart by skew.
const (
	valid = 365 * 24 * time.Hour
	skew  = time.Hour
)

// authority is a certificate for one name with the authority that signed it, which
// signs nothing else: its key is forgotten.
type authority struct {
	made time.Time
	cert tls.Certificate
	pem  []byte // of the authority
}

// issue makes one.
func issue(name string, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "thaw controller"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(valid),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, err
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, own.Public(), key)
	if err != nil {
		return nil, err
	}
	return &authority{
		made: now,
		cert: tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: own},
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}),
	}, nil
}

// old reports whether it is time for another.
func (a *authority) old(now time.Time) bool { return now.Sub(a.made) >= valid/2 }

// bundle is the authorities that are to be believed.
func bundle(all ...*authority) []byte {
	var out bytes.Buffer
	for _, a := range all {
		if a != nil {
			out.Write(a.pem)
		}
	}
	return out.Bytes()
}
