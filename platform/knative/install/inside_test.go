package install

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	status "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// TestForbiddenToken: an installer without the right to read Secrets says so at once, and one
// whose API server fails for a moment tries again.
func TestForbiddenToken(t *testing.T) {
	for _, x := range []struct {
		name  string
		err   error
		ended bool
		took  time.Duration
	}{
		{"forbidden", status.NewForbidden(schema.GroupResource{Resource: "secrets"}, "thaw-control-tls", nil), true, 0},
		{"unauthorized", status.NewUnauthorized("who is that"), true, 0},
		{"for a moment", status.NewInternalError(os.ErrDeadlineExceeded), false, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			kube, began := fake.NewClientset(), time.Now()
			kube.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
				return x.ended || time.Since(began) < x.took, nil, x.err
			})
			token, err := Token(t.Context(), kube.CoreV1().Secrets("thaw-system"))
			if took := time.Since(began); took != x.took || (err != nil) != x.ended || (token == "") != x.ended {
				t.Errorf("%s: %q, %v after %v", x.name, token, err, took)
			}
		})
	}
}

// TestWriteToken: the file with the token is its user's alone.
func TestWriteToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := WriteToken(path, "secret"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "secret\n" {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
