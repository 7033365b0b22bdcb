package knative

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
)

// TestControlSecrets: a changed control-stream token is valid at once, and the previous one
// for a while; a changed admin token replaces the previous one at once. Neither is the other.
func TestControlSecrets(t *testing.T) { synctest.Test(t, testControlSecrets) }

func testControlSecrets(t *testing.T) {
	secrets := fake.NewClientset().CoreV1().Secrets(System)
	told, leads := 0, true
	l := NewControlSecrets(ControlSecretsOptions{Secrets: secrets, Secure: true, Leads: func() bool { return leads },
		Changed: func() { told++ }, Log: slog.New(slog.DiscardHandler)})
	if _, err := l.Identity(); err == nil || len(l.AdminTokens()) != 0 {
		t.Error("an identity of nothing")
	}
	write := func(secret, token string) {
		t.Helper()
		s, err := secrets.Get(t.Context(), secret, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.Data[TokenKey] = []byte(token)
		if _, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		l.Reload(t.Context())
	}
	l.Reload(t.Context())
	first, admin := l.Tokens(), l.AdminTokens()
	if len(first) != 1 || len(first[0]) < 32 || len(admin) != 1 || len(admin[0]) < 32 || first[0] == admin[0] || told != 1 {
		t.Fatal(first, admin, told)
	}
	mounted, err := secrets.Get(t.Context(), ControlTLSSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range mounted.Data {
		if bytes.Contains(value, []byte(admin[0])) {
			t.Errorf("the admin token is the entry %s of the Secret that pods mount", key)
		}
	}
	other := strings.Repeat("n", 40)
	write(ControlTLSSecret, other)
	if got := l.Tokens(); !slices.Equal(got, []string{other, first[0]}) || !slices.Equal(l.AdminTokens(), admin) || told != 2 {
		t.Error(got, told)
	}
	time.Sleep(formerTokenGrace)
	l.Reload(t.Context())
	if got := l.Tokens(); !slices.Equal(got, []string{other}) || told != 3 {
		t.Error(got, told)
	}
	next := strings.Repeat("a", 40)
	write(AdminSecret, next)
	if got := l.AdminTokens(); !slices.Equal(got, []string{next}) || told != 4 {
		t.Error(got, told)
	}
	write(AdminSecret, "short")
	if got := l.AdminTokens(); !slices.Equal(got, []string{next}) || told != 4 {
		t.Error("a short admin token is taken:", got, told)
	}
	before, _ := l.Identity()
	if err := secrets.Delete(t.Context(), ControlTLSSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	leads = false // only the leader creates one
	l.Reload(t.Context())
	if after, _ := l.Identity(); after != before || !slices.Equal(l.Tokens(), []string{other}) {
		t.Error("what was read is forgotten")
	}
}

// silentSecrets is an API server that does not answer.
type silentSecrets struct{ core.SecretInterface }

func (silentSecrets) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Secret, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestSilentAPIServer: a reading of the Secrets ends after ten seconds.
func TestSilentAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		l := NewControlSecrets(ControlSecretsOptions{Secrets: silentSecrets{}, Log: slog.New(slog.DiscardHandler)})
		began := time.Now()
		if l.Reload(ctx); time.Since(began) != 10*time.Second {
			t.Errorf("the reading took %v", time.Since(began))
		}
	})
}
