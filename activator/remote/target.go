package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// idleConnection is how long an unused connection is kept: a new one costs two round
// trips, and the common servers close theirs after a minute.
const idleConnection = 30 * time.Second

type target struct {
	owner  *Remotes
	spec   *functions.Remote
	full   string // TEAM/NAME
	client *upstream.Client
	// None of them is 0, which would be no bound.
	timeouts functions.RemoteTimeouts

	// Of the URL.

	addr, host string // host:port, and the host field
	secure     bool
	prefix     string // of the paths below the URL
	root       string // of the paths outside of /v1
	badURL     string // why the URL is not used; "" it is

	// Guarded by Remotes.publishing.

	replaced  bool            // another is published under its name, or none
	published functions.State // that was logged last

	keyMu   sync.Mutex // one read of the file at a time
	keyFile keyFile

	mu        sync.Mutex
	circuit   circuit
	key       string
	keyReason string // why there is no key; "" there is one, or none is needed
	keyCount  int    // of keys that were read
	heldUntil time.Time
	requests  ratelimit.Bucket
	tokens    ratelimit.Bucket
}

func (r *Remotes) newTarget(spec *functions.Remote) *target {
	t := &target{owner: r, spec: spec, full: spec.FullName().String(), circuit: newCircuit()}
	given, usual := spec.Spec.Timeouts, functions.DefaultRemoteTimeouts()
	t.timeouts = functions.RemoteTimeouts{Connect: cmp.Or(given.Connect, usual.Connect),
		FirstToken: cmp.Or(given.FirstToken, usual.FirstToken), Idle: cmp.Or(given.Idle, usual.Idle)}
	l := spec.Spec.Limits
	t.requests, t.tokens = newBucket(ratelimit.Requests, l.RequestsPerMinute), newBucket(ratelimit.Tokens, l.TokensPerMinute)
	t.keyFile.path = spec.KeyPath()
	if env := spec.Spec.KeyFrom.Env; env != "" {
		t.key, t.keyReason = cleanKey([]byte(r.o.Getenv(env)), "the environment variable "+env)
	}
	t.parseURL()
	hostname, _, _ := net.SplitHostPort(t.addr)
	config := &tls.Config{RootCAs: r.o.Roots, ServerName: hostname, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	dial := r.o.Dial
	if dial == nil {
		dial = t.dial
	}
	t.client = upstream.New(upstream.Options{
		Dial:        dial,
		TLS:         func(string) *tls.Config { return config },
		DialTimeout: t.timeouts.Connect.Std(),
		IdleTimeout: idleConnection,
	})
	return t
}

// parseURL reads the URL and checks where it leads.
func (t *target) parseURL() {
	u, err := url.Parse(t.spec.Spec.URL)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		t.badURL = "its url is no address of an API"
		return
	}
	t.secure, t.host = u.Scheme == "https", u.Host
	t.addr = httpsource.HostPort(u)
	t.prefix = strings.TrimSuffix(u.EscapedPath(), "/")
	t.root = strings.TrimSuffix(t.prefix, "/v1")
	if functions.IsLoopbackHost(u.Hostname()) {
		return
	}
	if err := t.owner.trust.CheckURL(u); err != nil {
		t.badURL = fmt.Sprintf("its host %q is not public; name it in %s if it is meant", u.Hostname(), httpsource.HostsVariable)
	} else if !t.secure && !t.owner.trust.Trusts(u) {
		t.badURL = fmt.Sprintf("its url is http; use https, or name its host in %s", httpsource.HostsVariable)
	}
}

// dial connects to the Remote, at an address that is checked.
func (t *target) dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	if host, _, err := net.SplitHostPort(addr); err == nil && functions.IsLoopbackHost(host) {
		return httpsource.DialLoopback(ctx, d, addr)
	}
	return t.owner.trust.DialPublic(ctx, d, "tcp", addr)
}

// path is where an endpoint is at the other side. What is not below /v1 is beside it.
func (t *target) path(endpoint string) (prefix, path string) {
	if rest, ok := strings.CutPrefix(endpoint, "/v1/"); ok {
		return t.prefix, "/" + rest
	}
	return t.root, endpoint
}

// refreshKey reads the key file if it has changed. A new key closes the circuit.
func (t *target) refreshKey() (changed bool) {
	if t.keyFile.path == "" {
		return false
	}
	t.keyMu.Lock()
	defer t.keyMu.Unlock()
	key, reason, fresh := t.keyFile.read()
	if !fresh {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key == t.key && reason == t.keyReason {
		return false
	}
	t.key, t.keyReason = key, reason
	t.keyCount++
	t.circuit = newCircuit()
	return true
}

func (t *target) turn(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.circuit.turn(now)
}

// broken is why no request can be sent, whatever the circuit; "" one can. mu is held.
func (t *target) broken() string { return cmp.Or(t.badURL, t.keyReason) }

// reason is why the Remote is failed; "" it is ready. mu is held.
func (t *target) reason() string {
	if r := t.broken(); r != "" {
		return r
	}
	if t.circuit.state == open {
		return t.circuit.reason
	}
	return ""
}

// account is the name of the Remote's money.
func (t *target) account() string { return "remote " + t.full }

func teamAccount(team string) string { return "team " + team }

// budgets are those that a request of the team is charged to.
func (t *target) budgets(team string, teamLimit float64) []spend.Budget {
	return []spend.Budget{
		{Account: t.account(), Title: "the remote " + t.full, Limit: t.spec.Spec.Limits.SpendPerDay},
		{Account: teamAccount(team), Title: "the team " + team, Limit: teamLimit},
	}
}

// limited is the answer where no request can be sent, the other side asked for a pause, or
// a limit of the Remote's is used up; nil where none is so. mu is held.
func (t *target) limited(now time.Time) *openai.Error {
	if reason := t.broken(); reason != "" {
		return t.unavailable(reason).Final()
	}
	name := "`" + t.spec.Metadata.Name + "`"
	if left := t.heldUntil.Sub(now); left > 0 {
		return openai.New(openai.RateLimitExceeded,
			fmt.Sprintf("Rate limit reached: the other side of the remote %s takes no requests for another %d s.", name,
				wholeSeconds(left))).After(left)
	}
	if n := t.requests.Size(); n > 0 && t.requests.Free(&alone, now) < 1 {
		return openai.New(openai.RateLimitExceeded,
			fmt.Sprintf("Rate limit reached: the remote %s takes %d requests a minute.", name, n)).After(t.requests.Until(1, &alone, now))
	}
	if n := t.tokens.Size(); n > 0 && t.tokens.Free(&alone, now) <= 0 {
		return openai.New(openai.RateLimitExceeded,
			fmt.Sprintf("Rate limit reached: the remote %s takes %d tokens a minute.", name, n)).After(t.tokens.Until(1, &alone, now))
	}
	return nil
}

func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
