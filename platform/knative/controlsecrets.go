package knative

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/platform/mtls"
)

// ControlSecretsOptions of a ControlSecrets.
type ControlSecretsOptions struct {
	Secrets core.SecretInterface // of thaw's own namespace
	Secure  bool                 // read the Secret thaw-control-tls too
	Leads   func() bool          // the leader makes and renews that Secret
	Changed func()               // called after tokens changed; may be nil
	Log     *slog.Logger
	Now     func() time.Time // default time.Now
}

// ControlSecrets holds what the controller reads of thaw's Secrets, reread at intervals:
// the admin token, and the token and certificate of the control streams.
type ControlSecrets struct {
	o ControlSecretsOptions

	mu          sync.Mutex
	admin       string
	token       string
	former      string
	formerUntil time.Time // when former expires
	metrics     string
	id          *mtls.Identity
	lastError   string
}

const (
	rereadEvery = 30 * time.Second
	// formerTokenGrace is how long the previous token stays valid: kubelets bring a new
	// one to pods within two minutes.
	formerTokenGrace = 5 * time.Minute
)

// NewControlSecrets has read nothing yet.
func NewControlSecrets(o ControlSecretsOptions) *ControlSecrets {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &ControlSecrets{o: o}
}

// Run reloads until ctx ends. Without an API server the last values stay.
func (l *ControlSecrets) Run(ctx context.Context) error {
	for {
		next := rereadEvery
		if _, err := l.Identity(); err != nil && l.o.Secure || len(l.AdminTokens()) == 0 { // no peer can connect
			next = time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
			l.Reload(ctx)
		}
	}
}

// Reload reads the Secrets once.
func (l *ControlSecrets) Reload(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	now := l.o.Now()
	admin, err := EnsureAdminToken(ctx, l.o.Secrets)
	var read *ControlTLS
	if l.o.Secure {
		var failed error
		read, failed = EnsureControlTLS(ctx, l.o.Secrets, l.o.Leads(), now)
		err = errors.Join(err, failed)
	}
	l.mu.Lock()
	changed := l.apply(admin, read, now)
	message := ""
	if err != nil {
		message = err.Error()
	}
	repeated := message == l.lastError
	l.lastError = message
	l.mu.Unlock()
	if message != "" && !repeated && ctx.Err() == nil {
		l.o.Log.Warn("cannot read or renew thaw's Secrets", "error", err)
	}
	if changed && l.o.Changed != nil {
		l.o.Changed()
	}
}

// apply takes what was read, "" and nil where that failed, and reports whether tokens
// changed. mu must be held.
func (l *ControlSecrets) apply(admin string, read *ControlTLS, now time.Time) (changed bool) {
	if admin != "" && admin != l.admin {
		l.admin, changed = admin, true
	}
	if read == nil {
		return changed
	}
	l.id, l.metrics = read.Identity, read.Metrics
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

// Tokens lists those that open a control stream, the newest first.
func (l *ControlSecrets) Tokens() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.former == "" {
		return []string{l.token}
	}
	return []string{l.token, l.former}
}

// AdminTokens lists those that open the control API; empty before the Secret was read.
func (l *ControlSecrets) AdminTokens() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.admin == "" {
		return nil
	}
	return []string{l.admin}
}

// MetricsToken opens /metrics; "" before the Secret was read.
func (l *ControlSecrets) MetricsToken() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.metrics
}

var errNoIdentity = errors.New("the control certificates are not known yet")

// Identity is the controller's certificate.
func (l *ControlSecrets) Identity() (*mtls.Identity, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id == nil {
		return nil, errNoIdentity
	}
	return l.id, nil
}
