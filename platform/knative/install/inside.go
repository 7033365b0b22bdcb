package install

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/platform/knative"
)

// Token gives the token of the Secret thaw-link of a namespace, which it makes where
// there is none: of several that try, one does, and all get the same. An API server
// that does not answer is tried again until ctx ends.
func Token(ctx context.Context, c *knative.Cluster, namespace string) (string, error) {
	core, err := v1.NewForConfig(c.Config())
	if err != nil {
		return "", err
	}
	return token(ctx, core.Secrets(namespace))
}

func token(ctx context.Context, secrets v1.SecretInterface) (string, error) {
	var last error
	for {
		s, err := secrets.Get(ctx, knative.LinkSecret, metav1.GetOptions{})
		if status.IsNotFound(err) {
			s, err = secrets.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: knative.LinkSecret, Labels: map[string]string{"app.kubernetes.io/part-of": "thaw"}},
				Type:       corev1.SecretTypeOpaque,
				Data:       map[string][]byte{knative.LinkKey: []byte(random())},
			}, metav1.CreateOptions{})
			if status.IsAlreadyExists(err) {
				continue
			}
		}
		if err == nil {
			token := strings.TrimSpace(string(s.Data[knative.LinkKey]))
			if len(token) < 32 {
				return "", fmt.Errorf("the Secret %s holds no token of 32 characters or more under %q", knative.LinkSecret, knative.LinkKey)
			}
			return token, nil
		}
		if status.IsForbidden(err) || status.IsUnauthorized(err) {
			return "", err
		}
		if last == nil || ctx.Err() == nil {
			last = err // and not that the time is over
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("the Secret %s: %w", knative.LinkSecret, last)
		case <-time.After(time.Second):
		}
	}
}

// random is 256 bits.
func random() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails: the runtime ends the program instead
	return base64.RawURLEncoding.EncodeToString(b)
}

// WriteToken puts it where only this user and group read it, whole or not at all.
func WriteToken(path, token string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".token-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.WriteString(token + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Own gives a folder to a user and a group of the same number, so that
// its loader need not be root. What is in it is left as it is.
func Own(folder string, id int) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "own", Path: folder, Err: errors.New("is no folder")}
	}
	return os.Chown(folder, id, id)
}
