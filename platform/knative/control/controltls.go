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

// controlTLS is what the Secret thaw-control-tls says, read again and again: the token, and this
// end's certificate. The controller that leads renews it.
type controlTLS struct {
	kube      kubernetes.Interface
	namespace string
	leads     func() bool
	changed   func() // the tokens have; may be nil
	log       *slog.Logger
	now       func() time.Time

	mu          sync.Mutex
	token       string
	former      string
	formerUntil time.Time // when former counts no more
	id          *mtls.Identity
	lastError   string
}

const (
	rereadEvery = 30 * time.Second
	// formerTokenGrace is how long the token of before counts: kubelets bring the new one to
	// its pods within two minutes.
	formerTokenGrace = 5 * time.Minute
)

// Run reads until ctx ends. With the API server away all stays as it is.
func (l *controlTLS) Run(ctx context.Context) error {
	for {
		next := rereadEvery
		if _, err := l.identity(); err != nil { // nobody can link
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

// reload reads once.
func (l *controlTLS) reload(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	read, err := knative.EnsureControlTLS(ctx, l.kube.CoreV1().Secrets(l.namespace), l.leads(), l.now())
	l.mu.Lock()
	said, tell := "", false
	if err != nil {
		said = err.Error()
	} else {
		tell = l.apply(read)
	}
	again := said == l.lastError
	l.lastError = said
	l.mu.Unlock()
	if said != "" && !again && ctx.Err() == nil {
		l.log.Warn("the certificates of links stay as they are", "error", err)
	}
	if tell && l.changed != nil {
		l.changed()
	}
}

// apply takes over what was read; under mu. It reports whether tokens have changed.
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

// tokens are those that count, the newest first.
func (l *controlTLS) tokens() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.former == "" {
		return []string{l.token}
	}
	return []string{l.token, l.former}
}

var errNoIdentity = errors.New("the certificates of links are not known yet")

// identity is this end's.
func (l *controlTLS) identity() (*mtls.Identity, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id == nil {
		return nil, errNoIdentity
	}
	return l.id, nil
}
