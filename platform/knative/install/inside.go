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

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/knative"
)

// Token returns the token of the Secret thaw-control-tls and creates that Secret and
// thaw-admin if missing. Concurrent callers get the same token. It retries until ctx ends.
func Token(ctx context.Context, secrets v1.SecretInterface) (string, error) {
	var last error
	for {
		links, err := knative.EnsureControlTLS(ctx, secrets, true, time.Now())
		if err == nil {
			if _, err = knative.EnsureAdminToken(ctx, secrets); err == nil {
				return links.Token, nil
			}
		}
		if errors.Is(err, knative.ErrControlTLS) || errors.Is(err, knative.ErrAdminToken) || status.IsForbidden(err) ||
			status.IsUnauthorized(err) {
			return "", err
		}
		if last == nil || ctx.Err() == nil {
			last = err // the last error says more than the deadline
		}
		if !backoff.Sleep(ctx, time.Second) {
			return "", fmt.Errorf("the Secrets %s and %s: %w", knative.ControlTLSSecret, knative.AdminSecret, last)
		}
	}
}

// WriteToken writes a token readable by this user only.
func WriteToken(path, token string) error {
	return durable.WriteFile(path, []byte(token+"\n"), 0o600)
}

// ChownStore gives a folder, not its contents, to a user and a group with the number id,
// so that the loader need not run as root.
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
