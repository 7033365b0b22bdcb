package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// controlTLS holds the token and this end's certificate of the Secret thaw-control-tls,
// reread at intervals. The leader renews the Secret.
type controlTLS struct {
	kube      kubernetes.Interface
	namespace string
	leads     func() bool
	changed   func() // called after tokens changed; may be nil
	log       *slog.Logger
	now       func() time.Time

	mu          sync.Mutex
	token       string
	former      string
	formerUntil time.Time // when former expires
	id          *mtls.Identity
	lastError   string
}

const (
	rereadEvery = 30 * time.Second
	// formerTokenGrace is how long the previous token stays valid: kubelets bring a new
	// one to pods within two minutes.
	formerTokenGrace = 5 * time.Minute
)

// Run reloads until ctx ends. Without an API server the last values stay.
func (l *controlTLS) Run(ctx context.Context) error {
	for {
		next := rereadEvery
		if _, err := l.identity(); err != nil { // no peer can connect
			next = time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
			l.reload(ctx)
		}
	}
}

// reload reads the Secret once.
func (l *controlTLS) reload(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	read, err := knative.EnsureControlTLS(ctx, l.kube.CoreV1().Secrets(l.namespace), l.leads(), l.now())
	l.mu.Lock()
	message, tokensChanged := "", false
	if err != nil {
		message = err.Error()
	} else {
		tokensChanged = l.apply(read)
	}
	repeated := message == l.lastError
	l.lastError = message
	l.mu.Unlock()
	if message != "" && !repeated && ctx.Err() == nil {
		l.log.Warn("cannot renew the control certificates", "error", err)
	}
	if tokensChanged && l.changed != nil {
		l.changed()
	}
}

// apply takes the contents of the Secret and reports whether tokens changed. mu must be
// held.
func (l *controlTLS) apply(read *knative.ControlTLS) bool {
	now := l.now()
	l.id = read.Identity
	changed := false
	if l.former != "" && !now.Before(l.formerUntil) {
		l.former, changed = "", true
	}
	if read.Token != l.token {
		if l.token != "" {
			l.former, l.formerUntil = l.token, now.Add(formerTokenGrace)
		}
		l.token, changed = read.Token, true
	}
	return changed
}

// tokens lists the valid tokens, the newest first.
func (l *controlTLS) tokens() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.former == "" {
		return []string{l.token}
	}
	return []string{l.token, l.former}
}

var errNoIdentity = errors.New("the control certificates are not known yet")

// identity is the controller's certificate.
func (l *controlTLS) identity() (*mtls.Identity, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id == nil {
		return nil, errNoIdentity
	}
	return l.id, nil
}
