package schedulerhint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/platform/knative/secret"
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

func ReadCertificate(ctx context.Context, secrets core.SecretInterface, host string, now time.Time) (*Certificate, error) {
	s, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return parse(s.Data, host, now)
}

func parse(data map[string][]byte, host string, now time.Time) (*Certificate, error) {
	id, err := mtls.Read(data[rootEntry], mtls.Leaf{Cert: data[corev1.TLSCertKey], Key: data[corev1.TLSPrivateKeyKey]})
	if err == nil {
		_, err = id.Cert.Leaf.Verify(x509.VerifyOptions{Roots: id.Roots, DNSName: host, CurrentTime: now})
	}
	if err != nil {
		return nil, fmt.Errorf("the Secret %s holds no certificate for %s (delete it, then thaw-knative install): %w", SecretName, host, err)
	}
	return &Certificate{data[rootEntry], id.Cert}, nil
}

// EnsureCertificate reads the Secret, and creates it if it is missing. With renew an old or
// invalid certificate is replaced; the registration must trust the new one then.
func EnsureCertificate(ctx context.Context, secrets core.SecretInterface, host string, renew bool, now time.Time) (*Certificate, error) {
	data, err := secret.Ensure(ctx, secrets, SecretName, func(data map[string][]byte, isNew bool) (bool, error) {
		if !isNew {
			_, err := parse(data, host, now)
			if !renew || err == nil && !mtls.Old(data[corev1.TLSCertKey], now) {
				return false, err
			}
		}
		made, err := mtls.IssueFor(certificateLifetime, now, host)
		if err != nil {
			return false, err
		}
		leaf := made.Leaves[host]
		clear(data)
		data[rootEntry], data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey] = made.Root, leaf.Cert, leaf.Key
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return parse(data, host, now)
}
