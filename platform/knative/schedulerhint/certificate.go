package schedulerhint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/platform/mtls"
)

const (
	// SecretName is the Secret in thaw's namespace with the webhook's certificate.
	SecretName = "thaw-scheduler-hint-tls"

	rootEntry = "ca.crt"

	// certificateLifetime is long, since the registration trusts the authority of this one
	// certificate and only an administrator may change it.
	certificateLifetime = 10 * mtls.Valid
)

// TrustCommand makes API servers trust the certificate of the Secret, as thaw-knative
// install does.
const TrustCommand = `kubectl patch mutatingwebhookconfiguration ` + Name + ` --type json -p "[{\"op\":\"add\",\"path\":\"/webhooks/0/clientConfig/caBundle\",\"value\":\"$(kubectl get secret -n thaw-system ` + SecretName + ` -o jsonpath='{.data.ca\.crt}')\"}]"`

// Certificate is the webhook's certificate and the authority that signed it alone.
type Certificate struct {
	Root []byte // PEM
	pair tls.Certificate
}

// Host is the DNS name of a Service.
func Host(name, namespace string) string { return name + "." + namespace + ".svc" }

// ReadCertificate reads the Secret.
func ReadCertificate(ctx context.Context, secrets core.SecretInterface, host string, now time.Time) (*Certificate, error) {
	s, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return parse(s, host, now)
}

func parse(s *corev1.Secret, host string, now time.Time) (*Certificate, error) {
	id, err := mtls.Read(s.Data[rootEntry], mtls.Leaf{Cert: s.Data[corev1.TLSCertKey], Key: s.Data[corev1.TLSPrivateKeyKey]})
	if err == nil {
		_, err = id.Cert.Leaf.Verify(x509.VerifyOptions{Roots: id.Roots, DNSName: host, CurrentTime: now})
	}
	if err != nil {
		return nil, fmt.Errorf("the Secret %s holds no certificate for %s (delete it, then thaw-knative install): %w", SecretName, host, err)
	}
	return &Certificate{s.Data[rootEntry], id.Cert}, nil
}

// EnsureCertificate reads the Secret, and creates it if it is missing. With renew an old or
// invalid certificate is replaced; the registration must trust the new one then.
func EnsureCertificate(ctx context.Context, secrets core.SecretInterface, host string, renew bool, now time.Time) (*Certificate, error) {
	old, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if err != nil && !status.IsNotFound(err) {
		return nil, err
	}
	missing := err != nil
	if !missing {
		c, err := parse(old, host, now)
		if !renew || err == nil && !mtls.Old(old.Data[corev1.TLSCertKey], now) {
			return c, err
		}
	}
	made, err := mtls.IssueFor(certificateLifetime, now, host)
	if err != nil {
		return nil, err
	}
	leaf := made.Leaves[host]
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: SecretName, Labels: map[string]string{"app.kubernetes.io/part-of": "thaw"}}}
	if !missing {
		next = old.DeepCopy()
	}
	next.Data = map[string][]byte{rootEntry: made.Root, corev1.TLSCertKey: leaf.Cert, corev1.TLSPrivateKeyKey: leaf.Key}
	if missing {
		if next, err = secrets.Create(ctx, next, metav1.CreateOptions{}); status.IsAlreadyExists(err) {
			return ReadCertificate(ctx, secrets, host, now)
		}
	} else {
		next, err = secrets.Update(ctx, next, metav1.UpdateOptions{}) // fails if another process has renewed it
	}
	if err != nil {
		return nil, err
	}
	return parse(next, host, now)
}
