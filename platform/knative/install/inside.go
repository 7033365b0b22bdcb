package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	status "k8s.io/apimachinery/pkg/api/errors"
	v1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/knative"
)

// Token gives the token of the Secret thaw-control-tls of a namespace, which it makes where
// there is none, with the certificates of the links: of several that try, one does,
// and all get the same. An API server
// that does not answer is tried again until ctx ends.
func Token(ctx context.Context, c *knative.Cluster, namespace string) (string, error) {
	core, err := v1.NewForConfig(c.Config())
	if err != nil {
		return "", err
	}
	return ensureToken(ctx, core.Secrets(namespace))
}

func ensureToken(ctx context.Context, secrets v1.SecretInterface) (string, error) {
	var last error
	for {
		links, err := knative.EnsureControlTLS(ctx, secrets, true, time.Now())
		if err == nil {
			return links.Token, nil
		}
		if errors.Is(err, knative.ErrControlTLS) || status.IsForbidden(err) || status.IsUnauthorized(err) {
			return "", err
		}
		if last == nil || ctx.Err() == nil {
			last = err // and not that the time is over
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("the Secret %s: %w", knative.ControlTLSSecret, last)
		case <-time.After(time.Second):
		}
	}
}

// WriteToken puts it where only this user and group read it, whole or not at all.
func WriteToken(path, token string) error {
	return durable.WriteFile(path, []byte(token+"\n"), 0o600)
}

// ChownStore gives a folder to a user and a group of the same number, so that
// its loader need not be root. What is in it is left as it is.
func ChownStore(folder string, id int) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "own", Path: folder, Err: errors.New("is no folder")}
	}
	return os.Chown(folder, id, id)
}
