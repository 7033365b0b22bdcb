package who

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// What a Refusal was about; also the label of the metric.
const (
	LimitConcurrent = "concurrent"
	LimitHeld       = "held"
	LimitRequests   = "requests"
	LimitTokens     = "tokens"
	LimitColdStarts = "cold_starts"
)

// Refusal says which limit of a team is used up, and when to come again.
type Refusal struct {
	Limit      string
	Message    string
	RetryAfter time.Duration
}

// Limits of all teams. The zero value knows no team and refuses nothing. Its
// methods may be called concurrently; now is an argument everywhere.
type Limits struct {
	mu       sync.Mutex // serialises changes of the set of teams
	accounts atomic.Pointer[map[string]*account]
}

// account is what one team may use and uses.
type account struct {
	mu         sync.Mutex
	limits     functions.Limits
	active     int
	held       int
	requests   bucket
	tokens     bucket
	coldStarts bucket
	spent      int64 // tokens charged since the start
}

// bucket holds at most size and fills up evenly in span. A size of 0 is no limit.
type bucket struct {
	size  float64
	span  time.Duration
	level float64
	at    time.Time
}

func (b *bucket) resize(n int, span time.Duration) {
	used := b.size - b.level
	if b.size == 0 {
		used = 0
	}
	b.size, b.span = float64(n), span
	b.level = b.size - used // what was used stays used
}

func (b *bucket) fill(now time.Time) {
	if b.at.IsZero() || b.size == 0 {
		b.level, b.at = b.size, now
		return
	}
	if d := now.Sub(b.at); d > 0 {
		b.level = min(b.size, b.level+b.size*float64(d)/float64(b.span))
		b.at = now
	}
}

// until is how long it takes to fill up to level.
func (b *bucket) until(level float64) time.Duration {
	if b.size == 0 || b.level >= level {
		return 0
	}
	return time.Duration(math.Ceil((level - b.level) / b.size * float64(b.span)))
}

// epsilon forgives what adding up fractions of a unit loses.
const epsilon = 1e-6

// SetTeams tells the limits of the teams; a team that is not told has none.
// What a team has used stays used.
func (l *Limits) SetTeams(teams []functions.Team) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := map[string]*account{}
	told := map[string]functions.Limits{}
	for _, t := range teams {
		told[t.Metadata.Name] = t.Spec.Limits
	}
	if old := l.accounts.Load(); old != nil {
		for name, a := range *old {
			next[name] = a
		}
	}
	for name := range told {
		if next[name] == nil {
			next[name] = &account{}
		}
	}
	for name, a := range next {
		a.set(told[name])
	}
	l.accounts.Store(&next)
}

func (a *account) set(lim functions.Limits) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limits = lim
	a.requests.resize(lim.RequestsPerMinute, time.Minute)
	a.tokens.resize(lim.TokensPerMinute, time.Minute)
	a.coldStarts.resize(lim.ColdStartsPerHour, time.Hour)
}

func (l *Limits) account(team string) *account {
	if m := l.accounts.Load(); m != nil {
		if a := (*m)[team]; a != nil {
			return a
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	next := map[string]*account{}
	if old := l.accounts.Load(); old != nil {
		if a := (*old)[team]; a != nil {
			return a
		}
		for name, a := range *old {
			next[name] = a
		}
	}
	a := &account{}
	next[team] = a
	l.accounts.Store(&next)
	return a
}

// Lease is one admitted request of a team, until End.
type Lease struct{ a *account }

// Admit counts a request of a team in, or says why not. The lease must be
// ended exactly once where the refusal is nil. team must come from a key or
// from the configuration: an account is kept for each.
func (l *Limits) Admit(team string, now time.Time) (Lease, *Refusal) {
	a := l.account(team)
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.limits.Concurrent; n > 0 && a.active >= n {
		return Lease{}, &Refusal{LimitConcurrent, fmt.Sprintf("Rate limit reached: team %s may run %d requests at once.", team, n), time.Second}
	}
	if b := &a.tokens; b.size > 0 {
		if b.fill(now); b.level <= epsilon {
			return Lease{}, &Refusal{LimitTokens, fmt.Sprintf("Rate limit reached: team %s may use %d tokens a minute.", team, a.limits.TokensPerMinute), b.until(1)}
		}
	}
	if b := &a.requests; b.size > 0 {
		if b.fill(now); b.level < 1-epsilon {
			return Lease{}, &Refusal{LimitRequests, fmt.Sprintf("Rate limit reached: team %s may send %d requests a minute.", team, a.limits.RequestsPerMinute), b.until(1)}
		}
		b.level--
	}
	a.active++
	return Lease{a}, nil
}

// End gives the request's place back and charges its tokens.
func (l Lease) End(tokens int, now time.Time) {
	if l.a == nil {
		return
	}
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	l.a.active--
	l.a.spent += int64(max(tokens, 0))
	if b := &l.a.tokens; b.size > 0 {
		b.fill(now)
		b.level -= float64(max(tokens, 0))
	}
}

// Hold counts a request of a team in that begins to wait, or says why not: the
// team has as many waiting as it may. Where the refusal is nil, Unhold is called
// exactly once when the waiting ends.
func (l *Limits) Hold(team string) *Refusal {
	a := l.account(team)
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.limits.HeldRequests; n > 0 && a.held >= n {
		return &Refusal{LimitHeld, fmt.Sprintf("Rate limit reached: team %s may have %d requests held.", team, n), heldRetry}
	}
	a.held++
	return nil
}

// heldRetry is when to come again where requests are held: some of them will
// have been let through.
const heldRetry = 5 * time.Second

// Unhold ends what Hold began.
func (l *Limits) Unhold(team string) {
	a := l.account(team)
	a.mu.Lock()
	a.held--
	a.mu.Unlock()
}

// NeedsUsage reports whether the team's tokens are limited, so that a stream
// must be asked for its usage.
func (l Lease) NeedsUsage() bool {
	if l.a == nil {
		return false
	}
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	return l.a.tokens.size > 0
}

// AdmitColdStart counts a cold start of a team in, or says why not.
func (l *Limits) AdmitColdStart(team string, now time.Time) *Refusal {
	a := l.account(team)
	a.mu.Lock()
	defer a.mu.Unlock()
	b := &a.coldStarts
	if b.size == 0 {
		return nil
	}
	if b.fill(now); b.level < 1-epsilon {
		return &Refusal{LimitColdStarts, fmt.Sprintf("Rate limit reached: team %s may cause %d cold starts an hour.", team, a.limits.ColdStartsPerHour), b.until(1)}
	}
	b.level--
	return nil
}

// Usage of a team now. A limit of 0 is none, and what remains of it then
// means nothing.
type Usage struct {
	Limits     functions.Limits
	Active     int
	Held       int // requests that wait
	Requests   int // that remain this minute
	Tokens     int // that remain this minute; 0 in debt
	ColdStarts int // that remain this hour
	Spent      int64
	// When the buckets are full again.
	RequestsReset, TokensReset time.Duration
}

// Usage of a team now.
func (l *Limits) Usage(team string, now time.Time) Usage {
	m := l.accounts.Load()
	if m == nil {
		return Usage{}
	}
	a := (*m)[team]
	if a == nil {
		return Usage{}
	}
	return a.usage(now)
}

// Usage of the lease's team now.
func (l Lease) Usage(now time.Time) Usage {
	if l.a == nil {
		return Usage{}
	}
	return l.a.usage(now)
}

func (a *account) usage(now time.Time) Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range []*bucket{&a.requests, &a.tokens, &a.coldStarts} {
		b.fill(now)
	}
	return Usage{
		Limits:        a.limits,
		Active:        a.active,
		Held:          a.held,
		Requests:      whole(a.requests.level),
		Tokens:        whole(a.tokens.level),
		ColdStarts:    whole(a.coldStarts.level),
		Spent:         a.spent,
		RequestsReset: a.requests.until(a.requests.size),
		TokensReset:   a.tokens.until(a.tokens.size),
	}
}

func whole(f float64) int { return int(max(0, math.Floor(f+epsilon))) }
