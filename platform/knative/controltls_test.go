package knative

import (
	"bytes"
	"crypto/x509"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/thaw-dev/thaw/platform/mtls"
)

// shown returns the identity of an end that has read these entries.
func shown(t testing.TB, data map[string][]byte, end string) *mtls.Identity {
	t.Helper()
	id, err := mtls.Read(data[rootsEntry], mtls.Leaf{Cert: data[end+".crt"], Key: data[end+".key"]})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func trusts(a, b *mtls.Identity, now time.Time) bool {
	_, err := b.Cert.Leaf.Verify(x509.VerifyOptions{Roots: a.Roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// TestRenewControlTLS: certificates rotate, and at every moment peers that have read
// the Secret within the last minutes and peers that have not yet trust each other.
func TestRenewControlTLS(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	data := map[string][]byte{TokenKey: []byte("a-token-that-was-there-before-0123456789")} // of an older version
	if changed, err := RenewControlTLS(data, now); err != nil || !changed ||
		string(data[TokenKey]) != "a-token-that-was-there-before-0123456789" {
		t.Fatalf("%v %v", changed, err)
	}
	if l, err := ReadControlTLS(data); err != nil || l.Identity == nil || len(l.Metrics) < 32 || l.Metrics == l.Token {
		t.Fatal(l, err)
	}
	late := maps.Clone(data) // read five minutes ago
	stages, first := 0, data["controller.crt"]
	for end := now.Add(2 * mtls.Valid); now.Before(end); {
		before := maps.Clone(data)
		changed, err := RenewControlTLS(data, now)
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			stages++
		}
		for _, one := range []string{"controller", "activator", "loader"} {
			for _, other := range []map[string][]byte{data, before, late} {
				a, b := shown(t, data, one), shown(t, other, "loader")
				if !trusts(a, b, now) || !trusts(b, a, now) {
					t.Fatalf("at %v %s and a loader that has not read yet do not believe each other", now, one)
				}
			}
		}
		late = before
		step := 5 * time.Minute
		if len(data[nextSinceEntry]) == 0 && !changed {
			step = 12 * 24 * time.Hour
			late = maps.Clone(data)
		}
		now = now.Add(step)
	}
	if stages < 6 || bytes.Equal(first, data["controller.crt"]) {
		t.Errorf("%d steps in two years", stages)
	}
	// After a year without renewal everything is replaced.
	now = now.Add(2 * mtls.Valid)
	if changed, err := RenewControlTLS(data, now); err != nil || !changed || len(data[nextSinceEntry]) != 0 ||
		!trusts(shown(t, data, "loader"), shown(t, data, "controller"), now) {
		t.Errorf("%v %v", changed, err)
	}
	for _, c := range []struct{ key, value string }{{"activator.key", ""}, {"loader.crt", "x"}, {rootsEntry, ""}} {
		data[c.key] = []byte(c.value)
		if changed, err := RenewControlTLS(data, now); err != nil || !changed || !allCertificatesValid(data, now) {
			t.Errorf("%s is damaged: %v %v", c.key, changed, err)
		}
	}
	if changed, _ := RenewControlTLS(data, now); changed {
		t.Error("changed twice")
	}
}

// TestEnsureControlTLS: concurrent calls create one Secret.
func TestEnsureControlTLS(t *testing.T) {
	secrets := fake.NewClientset().CoreV1().Secrets(System)
	now := time.Now()
	if _, err := EnsureControlTLS(t.Context(), secrets, false, now); err == nil {
		t.Error("there is none")
	}
	first, err := EnsureControlTLS(t.Context(), secrets, true, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, renew := range []bool{true, false} {
		again, err := EnsureControlTLS(t.Context(), secrets, renew, now)
		if err != nil || again.Token != first.Token || !bytes.Equal(again.Identity.Cert.Certificate[0], first.Identity.Cert.Certificate[0]) {
			t.Errorf("another one: %v", err)
		}
	}
	s, _ := secrets.Get(t.Context(), ControlTLSSecret, metav1.GetOptions{})
	s.Data[TokenKey] = []byte("short")
	if _, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureControlTLS(t.Context(), secrets, true, now); err == nil {
		t.Error("a short token is taken")
	}
}
