package knative

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/mtls"
)

type ControlSecretsOptions struct {
	Secrets core.SecretInterface // of thaw's own namespace
	Secure  bool                 // read the Secret thaw-control-tls too
	Leads   func() bool          // the leader makes and renews that Secret
	Changed func()               // called after tokens changed; may be nil
	Log     *slog.Logger
}

// ControlSecrets holds what the controller reads of thaw's Secrets, reread at intervals:
// the admin token, and the token and certificate of the control streams.
type ControlSecrets struct {
	o         ControlSecretsOptions
	read      atomic.Pointer[controlSecrets] // the values of the last Reload
	lastError string                         // Reload's
}

type controlSecrets struct {
	ControlTLS
	admin       string
	former      string    // the token before Token
	formerUntil time.Time // when former expires
}

const (
	rereadEvery = 30 * time.Second
	// formerTokenGrace is how long the previous token stays valid: kubelets bring a new
	// one to pods within two minutes.
	formerTokenGrace = 5 * time.Minute
)

// NewControlSecrets has read nothing yet.
func NewControlSecrets(o ControlSecretsOptions) *ControlSecrets {
	s := &ControlSecrets{o: o}
	s.read.Store(&controlSecrets{})
	return s
}

// Run reloads until ctx ends. Without an API server the last values stay.
func (s *ControlSecrets) Run(ctx context.Context) error {
	for {
		next := rereadEvery
		if _, err := s.Identity(); err != nil && s.o.Secure || len(s.AdminTokens()) == 0 { // no peer can connect
			next = time.Second
		}
		if !backoff.Sleep(ctx, next) {
			return nil
		}
		s.Reload(ctx)
	}
}

// Reload reads the Secrets once. It is called by one goroutine at a time.
func (s *ControlSecrets) Reload(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	now := time.Now()
	admin, err := EnsureAdminToken(ctx, s.o.Secrets)
	var read *ControlTLS
	if s.o.Secure {
		var failed error
		read, failed = EnsureControlTLS(ctx, s.o.Secrets, s.o.Leads(), now)
		err = errors.Join(err, failed)
	}
	values := *s.read.Load()
	changed := values.apply(admin, read, now)
	s.read.Store(&values)
	message := ""
	if err != nil {
		message = err.Error()
	}
	repeated := message == s.lastError
	s.lastError = message
	if message != "" && !repeated && ctx.Err() == nil {
		s.o.Log.Warn("cannot read or renew thaw's Secrets", "error", err)
	}
	if changed && s.o.Changed != nil {
		s.o.Changed()
	}
}

// apply takes what was read, "" and nil where that failed, and reports whether tokens
// changed.
func (s *controlSecrets) apply(admin string, read *ControlTLS, now time.Time) (changed bool) {
	if admin != "" && admin != s.admin {
		s.admin, changed = admin, true
	}
	if read == nil {
		return changed
	}
	if s.former != "" && !now.Before(s.formerUntil) {
		s.former, changed = "", true
	}
	if read.Token != s.Token {
		if s.Token != "" {
			s.former, s.formerUntil = s.Token, now.Add(formerTokenGrace)
		}
		changed = true
	}
	s.ControlTLS = *read
	return changed
}

// Tokens lists those that open a control stream, the newest first.
func (s *ControlSecrets) Tokens() []string {
	read := s.read.Load()
	if read.former == "" {
		return []string{read.Token}
	}
	return []string{read.Token, read.former}
}

// AdminTokens lists those that open the control API; empty before the Secret was read.
func (s *ControlSecrets) AdminTokens() []string {
	if admin := s.read.Load().admin; admin != "" {
		return []string{admin}
	}
	return nil
}

// MetricsToken opens /metrics; "" before the Secret was read.
func (s *ControlSecrets) MetricsToken() string { return s.read.Load().Metrics }

var errNoIdentity = errors.New("the control certificates are not known yet")

// Identity is the controller's certificate.
func (s *ControlSecrets) Identity() (*mtls.Identity, error) {
	if id := s.read.Load().ControlTLS.Identity; id != nil {
		return id, nil
	}
	return nil, errNoIdentity
}
