package knative

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative/secret"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// randomToken returns 32 random bytes as text.
func randomToken() []byte {
	b := make([]byte, 32)
	rand.Read(b) // never fails: the runtime ends the program instead
	return []byte(base64.RawURLEncoding.EncodeToString(b))
}

// Entries of the Secret thaw-control-tls beside the token. Pods of activators and loaders
// mount only their own entries.
const (
	// MetricsEntry holds what Prometheus shows to read /metrics of activators and controllers.
	MetricsEntry = "metrics-token"

	rootsEntry     = "ca.crt"   // trusted authorities
	rootEntry      = "root.crt" // the authority of the certificates in use
	nextSinceEntry = "next-since"
	nextPrefix     = "next-" // prefix of the entries of the next authority, until all peers trust it

	// trustDelay is how long peers may take to read a new authority: kubelets bring a
	// Secret to its pods within two minutes.
	trustDelay = 10 * time.Minute
)

// certifiedNames maps the entries of certificates to the names in them.
var certifiedNames = map[string]string{"controller": controlstream.NameController, "activator": controlstream.NameActivator, "loader": controlstream.NameLoader}

// ErrControlTLS: the Secret thaw-control-tls is incomplete or invalid.
var ErrControlTLS = errors.New("the Secret " + ControlTLSSecret)

// ErrAdminToken: the Secret thaw-admin is invalid.
var ErrAdminToken = errors.New("the Secret " + AdminSecret)

// ControlTLS is the content of the Secret thaw-control-tls.
type ControlTLS struct {
	Token    string
	Metrics  string         // opens /metrics
	Identity *mtls.Identity // the controller's
}

// RenewControlTLS brings the Secret's entries up to date: it adds what is missing, and
// replaces an old authority in two steps. It reports whether data changed.
func RenewControlTLS(data map[string][]byte, now time.Time) (changed bool, err error) {
	for _, key := range []string{TokenKey, MetricsEntry} {
		if len(data[key]) == 0 {
			data[key] = randomToken()
			changed = true
		}
	}
	issue := func(prefix string) error {
		made, err := mtls.Issue(now, slices.Sorted(maps.Values(certifiedNames))...)
		if err != nil {
			return err
		}
		data[prefix+rootEntry] = made.Root
		for entry, name := range certifiedNames {
			data[prefix+entry+".crt"], data[prefix+entry+".key"] = made.Leaves[name].Cert, made.Leaves[name].Key
		}
		changed = true
		return nil
	}
	forget := func() {
		for key := range data {
			if strings.HasPrefix(key, nextPrefix) {
				delete(data, key)
			}
		}
	}
	since, reads := time.Parse(time.RFC3339, string(data[nextSinceEntry]))
	switch {
	case !allCertificatesValid(data, now):
		forget()
		if err := issue(""); err != nil {
			return false, err
		}
		data[rootsEntry] = data[rootEntry]
	case len(data[nextSinceEntry]) > 0 && (reads != nil || now.Sub(since) >= trustDelay):
		// The old authority stays trusted until the next rotation.
		data[rootsEntry] = slices.Concat(data[nextPrefix+rootEntry], data[rootEntry])
		for key := range data {
			if own, next := strings.CutPrefix(key, nextPrefix); next && key != nextSinceEntry {
				data[own] = data[key]
			}
		}
		forget()
		changed = true
	case len(data[nextSinceEntry]) == 0 && mtls.Old(data["controller.crt"], now):
		if err := issue(nextPrefix); err != nil {
			return false, err
		}
		data[rootsEntry] = slices.Concat(data[rootEntry], data[nextPrefix+rootEntry])
		data[nextSinceEntry] = []byte(now.UTC().Format(time.RFC3339))
	}
	return changed, nil
}

// allCertificatesValid reports whether every certificate exists, is valid now and fits its
// authority.
func allCertificatesValid(data map[string][]byte, now time.Time) bool {
	for entry := range certifiedNames {
		id, err := mtls.Read(data[rootsEntry], mtls.Leaf{Cert: data[entry+".crt"], Key: data[entry+".key"]})
		if err != nil || id.Cert.Leaf == nil || now.After(id.Cert.Leaf.NotAfter) {
			return false
		}
	}
	return len(data[rootEntry]) > 0
}

// ReadControlTLS decodes the Secret's entries.
func ReadControlTLS(data map[string][]byte) (*ControlTLS, error) {
	token, err := readToken(data)
	if err != nil {
		return nil, fmt.Errorf("%w %w", ErrControlTLS, err)
	}
	l := &ControlTLS{Token: token, Metrics: strings.TrimSpace(string(data[MetricsEntry]))}
	if l.Identity, err = mtls.Read(data[rootsEntry], mtls.Leaf{Cert: data["controller.crt"], Key: data["controller.key"]}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrControlTLS, err)
	}
	return l, nil
}

// EnsureControlTLS reads the Secret thaw-control-tls; with renew it also creates and
// renews it. Concurrent callers get the same content.
func EnsureControlTLS(ctx context.Context, secrets core.SecretInterface, renew bool, now time.Time) (*ControlTLS, error) {
	if !renew {
		s, err := secrets.Get(ctx, ControlTLSSecret, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return ReadControlTLS(s.Data)
	}
	data, err := secret.Ensure(ctx, secrets, ControlTLSSecret, func(data map[string][]byte, _ bool) (bool, error) {
		return RenewControlTLS(data, now)
	})
	if err != nil {
		return nil, err
	}
	return ReadControlTLS(data)
}

func readToken(data map[string][]byte) (string, error) {
	token := strings.TrimSpace(string(data[TokenKey]))
	if len(token) < 32 {
		return "", fmt.Errorf("holds no token of 32 characters or more under %q", TokenKey)
	}
	return token, nil
}

// EnsureAdminToken returns the token of the Secret thaw-admin, which it makes where there is
// none. Concurrent callers get the same one.
func EnsureAdminToken(ctx context.Context, secrets core.SecretInterface) (string, error) {
	data, err := secret.Ensure(ctx, secrets, AdminSecret, func(data map[string][]byte, isNew bool) (bool, error) {
		if isNew {
			data[TokenKey] = randomToken()
		}
		return isNew, nil
	})
	if err != nil {
		return "", err
	}
	token, err := readToken(data)
	if err != nil {
		return "", fmt.Errorf("%w %w", ErrAdminToken, err)
	}
	return token, nil
}
