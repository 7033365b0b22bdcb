package remote

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"maps"
	"math"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// Publisher is the data path that gets the snapshots.
type Publisher interface {
	Publish(...snapshot.Snapshot)
	Remove(...functions.Name)
}

// Metrics makes the series of counters, which are declared elsewhere.
type Metrics interface {
	Series(metric string, labels ...string) func(float64)
}

// Options of Remotes; each field has the default named.
type Options struct {
	// Getenv reads keys and THAW_SOURCE_HOSTS; nil: all are empty.
	Getenv func(string) string
	// Ledger holds the money; nil: one that is not kept.
	Ledger *spend.Ledger
	// Currency is a word for messages; "".
	Currency string
	// Dial opens a connection; nil: to a checked address, see the package.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Roots verify certificates; nil: those of the system.
	Roots *x509.CertPool
	// Metrics makes the series; nil: nothing is counted.
	Metrics Metrics
	// Log gets changes of state; nil is silence.
	Log *slog.Logger
	// Now is the clock; time.Now.
	Now func() time.Time
}

// checkPeriod is how often Run looks at key files and at pauses that are over.
const checkPeriod = time.Second

// Remotes are the Remotes of an installation. The methods may be called concurrently.
type Remotes struct {
	o     Options
	trust *httpsource.HostTrust

	publishing sync.Mutex // orders snapshots, so that the last one is the newest
	to         Publisher  // guarded by publishing; nil before Attach

	mu     sync.Mutex
	byName map[functions.Name]*target
}

// New makes an empty set; it starts nothing.
func New(o Options) *Remotes {
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.Ledger == nil {
		o.Ledger, _ = spend.Open("")
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	getenv := o.Getenv
	return &Remotes{o: o, byName: map[functions.Name]*target{}, trust: httpsource.NewHostTrust(func(name string) string {
		if name == httpsource.HostsVariable { // proxies are not used
			return getenv(name)
		}
		return ""
	})}
}

// Attach publishes the Remotes to the data path, from now on.
func (r *Remotes) Attach(to Publisher) {
	r.publishing.Lock()
	r.to = to
	r.publishing.Unlock()
	for _, t := range r.all() {
		r.publish(t)
	}
}

// Set replaces the Remotes. One that has not changed keeps its circuit, its connections
// and its limits' use; requests under way go on.
func (r *Remotes) Set(remotes []*functions.Remote) {
	next := make(map[functions.Name]*target, len(remotes))
	var fresh []*target
	r.mu.Lock()
	for _, spec := range remotes {
		name := spec.FullName()
		t := r.byName[name]
		if t == nil || t.spec != spec && !reflect.DeepEqual(t.spec, spec) {
			t = r.newTarget(spec)
			fresh = append(fresh, t)
		}
		next[name] = t
	}
	old := r.byName
	r.byName = next
	r.mu.Unlock()
	for _, t := range fresh {
		t.refreshKey()
	}
	r.publishing.Lock()
	for name, t := range old {
		if next[name] != t {
			t.replaced = true
			t.client.CloseIdle() // requests that wait go on
		}
		if next[name] == nil && r.to != nil {
			r.to.Remove(name)
		}
	}
	r.publishing.Unlock()
	for _, t := range fresh {
		r.publish(t)
	}
}

// Run reads keys again and ends pauses until ctx ends.
func (r *Remotes) Run(ctx context.Context) error {
	tick := time.NewTicker(checkPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		r.Check()
	}
}

// Check reads the keys again whose files have changed, and ends the pauses that are over.
func (r *Remotes) Check() {
	for _, t := range r.all() {
		changed := t.refreshKey()
		if t.turn(r.o.Now()) || changed {
			r.publish(t)
		}
	}
}

// Close closes the idle connections.
func (r *Remotes) Close() {
	for _, t := range r.all() {
		t.client.Close()
	}
}

func (r *Remotes) all() []*target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.byName))
}

// find is a Remote by its name; nil if there is none.
func (r *Remotes) find(name functions.Name) *target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byName[name.WithoutAdapter()]
}

func (r *Remotes) publish(t *target) {
	r.publishing.Lock()
	defer r.publishing.Unlock()
	if r.to == nil || t.replaced {
		return
	}
	f := t.snapshot(r.o.Now())
	switch {
	case f.State == t.published:
	case f.Failure != nil:
		r.o.Log.Warn("remote failed", "remote", t.full, "reason", f.Failure.Reason)
	default:
		r.o.Log.Info("remote ready", "remote", t.full)
	}
	t.published = f.State
	r.to.Publish(f)
}

// snapshot is the state of t as the data path sees it.
func (t *target) snapshot(now time.Time) snapshot.Snapshot {
	f := snapshot.Snapshot{Name: t.spec.FullName(), Remote: t.spec, State: functions.Ready, Progress: functions.NoProgress,
		Forecast: functions.NoForecast}
	t.mu.Lock()
	defer t.mu.Unlock()
	if reason := t.reason(); reason != "" {
		at := t.circuit.since
		if at.IsZero() {
			at = now
		}
		f.State, f.Failure = functions.Failed, &snapshot.Failure{Reason: reason, At: at}
		return f
	}
	slots := t.spec.Spec.Limits.Concurrent
	if slots <= 0 {
		slots = math.MaxInt32
	}
	f.Replicas = []snapshot.Replica{{ID: "remote", Endpoint: t.spec.Spec.URL, Slots: slots}}
	return f
}

// State is the state of a Remote, ready or failed, and why it failed; false where there
// is none of this name.
func (r *Remotes) State(name functions.Name) (state functions.State, reason string, ok bool) {
	t := r.find(name)
	if t == nil {
		return "", "", false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if reason = t.reason(); reason != "" {
		return functions.Failed, reason, true
	}
	return functions.Ready, "", true
}

// Refusal is the answer that a request of the team would get now: because of the circuit,
// a pause that the other side asked for, a limit or a budget. nil: it would be sent. It
// changes nothing; r may be nil.
func (r *Remotes) Refusal(name functions.Name, team string, teamBudget float64) *openai.Error {
	if r == nil {
		return nil
	}
	t := r.find(name)
	if t == nil {
		return openai.New(openai.ModelNotFound, "")
	}
	now := r.o.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.limited(now); e != nil {
		return e
	}
	if wait, ok := t.circuit.passes(now); !ok {
		return t.unavailable(t.circuit.reason).After(wait)
	}
	if refusal := r.o.Ledger.Room(now, t.budgets(team, teamBudget)...); refusal != nil {
		return t.budgetError(refusal)
	}
	return nil
}

// SpentToday is what a Remote has cost today, for all teams.
func (r *Remotes) SpentToday(name functions.Name) float64 {
	if t := r.find(name); t != nil {
		return r.o.Ledger.Spent(t.account(), r.o.Now())
	}
	return 0
}

// TeamSpentToday is what the requests of a team have cost today.
func (r *Remotes) TeamSpentToday(team string) float64 {
	return r.o.Ledger.Spent(teamAccount(team), r.o.Now())
}

// Samples yields the circuits, what was spent today and what may be.
func (r *Remotes) Samples(yield func(metric string, value float64, labels ...string)) {
	now := r.o.Now()
	for _, t := range r.all() {
		t.mu.Lock()
		t.circuit.turn(now)
		state := t.circuit.state
		if t.broken() != "" {
			state = open
		}
		t.mu.Unlock()
		for i, word := range circuitWords {
			value := 0.0
			if circuitState(i) == state {
				value = 1
			}
			yield("thaw_remote_circuit", value, t.spec.Metadata.Name, t.spec.Metadata.Namespace, word)
		}
		yield("thaw_remote_spent_today", r.o.Ledger.Spent(t.account(), now), t.spec.Metadata.Name, t.spec.Metadata.Namespace)
		if limit := t.spec.Spec.Limits.SpendPerDay; limit > 0 {
			yield("thaw_remote_spend_limit", limit, t.spec.Metadata.Name, t.spec.Metadata.Namespace)
		}
	}
}

// count adds to a counter of the Remote, for requests of the team.
func (t *target) count(metric string, n float64, team string, labels ...string) {
	if m := t.owner.o.Metrics; m != nil && n > 0 {
		m.Series(metric, append([]string{t.spec.Metadata.Name, t.spec.Metadata.Namespace, team}, labels...)...)(n)
	}
}

func newBucket(kind ratelimit.Kind, n int) ratelimit.Bucket {
	b := ratelimit.NewBucket(kind)
	b.Resize(n, &alone)
	return b
}

// alone is a bucket that no other activator shares.
var alone ratelimit.Membership
