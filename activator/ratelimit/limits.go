package ratelimit

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// refusals are the Limit of each kind's Refusal, and its message about a team and a limit.
var refusals = [kindCount]struct{ limit, message string }{
	Requests:   {"requests", "Rate limit reached: team %s may send %d requests a minute."},
	Tokens:     {"tokens", "Rate limit reached: team %s may use %d tokens a minute."},
	ColdStarts: {"cold_starts", "Rate limit reached: team %s may cause %d cold starts an hour."},
	Concurrent: {"concurrent", "Rate limit reached: team %s may run %d requests at once."},
	Held:       {"held", "Rate limit reached: team %s may have %d requests held."},
}

// Refusal names the used-up limit of a team and when to retry.
type Refusal struct {
	Limit      string // also the label of the metric
	Message    string
	RetryAfter time.Duration

	// For RetryUntilAllotment: the bucket that lacks a unit another activator may have.
	account    *account
	kind       Kind
	allotments uint64
}

// Limits holds the limits and the use of all teams. The zero value has no limits and no
// coordinator; ShareLimits connects it to one. Its methods may be called concurrently.
type Limits struct {
	mu          sync.Mutex // serialises changes of the set of teams, and of how buckets are tied
	accounts    atomic.Pointer[map[string]*account]
	membership  atomic.Pointer[Membership] // nil: there is no coordinator
	wantsReport func()                     // set by ShareLimits: a report is to be sent now
}

// account holds one team's limits and use.
type account struct {
	limiter    *Limits
	mu         sync.Mutex
	limits     functions.Limits
	priority   functions.Priority // the highest of the team's requests; "": any
	buckets    [kindCount]Bucket
	allotments uint64
	spent      int64 // tokens charged since the start
}

func (l *Limits) newAccount() *account {
	a := &account{limiter: l}
	for k := range a.buckets {
		a.buckets[k] = NewBucket(Kind(k))
	}
	return a
}

var unshared Membership

// all is the accounts of all teams that there are. It must not be changed.
func (l *Limits) all() map[string]*account {
	if m := l.accounts.Load(); m != nil {
		return *m
	}
	return nil
}

func (l *Limits) memberOf() *Membership {
	if m := l.membership.Load(); m != nil {
		return m
	}
	return &unshared
}

func Sizes(l functions.Limits) [kindCount]int {
	return [kindCount]int{
		Requests: l.RequestsPerMinute, Tokens: l.TokensPerMinute, ColdStarts: l.ColdStartsPerHour,
		Concurrent: l.Concurrent, Held: l.HeldRequests,
	}
}

// SetTeams replaces the limits of all teams; a team not in teams has none. What a team
// has used stays used.
func (l *Limits) SetTeams(teams []functions.Team) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := map[string]*account{}
	specs := map[string]functions.TeamSpec{}
	for _, t := range teams {
		specs[t.Metadata.Name] = t.Spec
	}
	maps.Copy(next, l.all())
	for name := range specs {
		if next[name] == nil {
			next[name] = l.newAccount()
		}
	}
	for name, a := range next {
		a.mu.Lock()
		a.limits, a.priority = specs[name].Limits, specs[name].Priority.Max
		for k, n := range Sizes(a.limits) {
			a.buckets[k].Resize(n, l.memberOf())
		}
		a.mu.Unlock()
	}
	l.accounts.Store(&next)
}

func (l *Limits) account(team string) *account {
	if a := l.all()[team]; a != nil {
		return a
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.all()[team]; a != nil {
		return a
	}
	next := map[string]*account{}
	maps.Copy(next, l.all())
	a := l.newAccount()
	next[team] = a
	l.accounts.Store(&next)
	return a
}

// Lease is one admitted request of a team; End ends it.
type Lease struct {
	a       *account
	covered bool // it has no place of its own
}

// Admit admits a request of a team or refuses it. Without a refusal the lease must be
// ended exactly once. team must come from a key or
// from the configuration: an account is kept for each.
func (l *Limits) Admit(team string, now time.Time) (Lease, *Refusal) {
	a, r := l.admit(team, now, Concurrent, Tokens, Requests)
	return Lease{a: a}, r
}

// admit takes a unit of each of these limits, but no tokens, unless one of them is used up.
func (l *Limits) admit(team string, now time.Time, kinds ...Kind) (*account, *Refusal) {
	a := l.account(team)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range kinds {
		if a.exhausted(k, now) {
			return nil, a.refuse(k, now, team)
		}
	}
	for _, k := range kinds {
		if k != Tokens {
			a.take(k, 1, now)
		}
	}
	return a, nil
}

// Cover returns a lease for a request of a team that another one's lease covers: it takes no
// place and is no request of the minute. Its tokens are charged.
func (l *Limits) Cover(team string) Lease { return Lease{l.account(team), true} }

// exhausted reports whether a limit of that kind has no unit here; mu must be held. Any
// fraction of tokens will do: a request's tokens are known afterwards.
func (a *account) exhausted(k Kind, now time.Time) bool {
	b := &a.buckets[k]
	if b.Size() == 0 {
		return false
	}
	free := b.Free(a.limiter.memberOf(), now)
	if k == Tokens {
		return free <= epsilon
	}
	return free < 1-epsilon
}

// take takes n units; mu must be held.
func (a *account) take(k Kind, n int64, now time.Time) {
	b := &a.buckets[k]
	if b.Size() == 0 && k.Span() > 0 {
		return
	}
	b.Take(n, now)
	a.requestAllotment(b)
}

// requestAllotment asks the coordinator for units if the bucket is low; mu must be held.
func (a *account) requestAllotment(b *Bucket) {
	if a.limiter.wantsReport != nil && b.NeedsReport(a.limiter.memberOf()) {
		a.limiter.wantsReport()
	}
}

// refuse makes the refusal; mu must be held.
func (a *account) refuse(k Kind, now time.Time, team string) *Refusal {
	b := &a.buckets[k]
	remote, after := b.Missing(a.limiter.memberOf(), now)
	r := &Refusal{Limit: refusals[k].limit, Message: fmt.Sprintf(refusals[k].message, team, b.Size()), RetryAfter: after}
	if remote {
		r.account, r.kind, r.allotments = a, k, a.allotments
	}
	return r
}

// RetryUntilAllotment tries until there is no refusal, or one that is about the whole limit and
// not about what of it is here: that comes in a moment. It waits AllotmentWait at
// most, and not at all where there is no coordinator.
func RetryUntilAllotment(ctx func() context.Context, try func() *Refusal) *Refusal {
	r := try()
	if r == nil || r.account == nil {
		return r
	}
	late := time.After(AllotmentWait)
	for r != nil && r.account != nil {
		if !r.await(ctx(), late) {
			return r
		}
		r = try()
	}
	return r
}

// await waits for the next allotment; false: none came in time.
func (r *Refusal) await(ctx context.Context, late <-chan time.Time) bool {
	a := r.account
	a.mu.Lock()
	if a.allotments != r.allotments { // since
		a.mu.Unlock()
		return true
	}
	b := &a.buckets[r.kind]
	changed := b.Await()
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		b.EndAwait()
		a.mu.Unlock()
	}()
	a.limiter.wantsReport()
	select {
	case <-changed:
		return true
	case <-late:
	case <-ctx.Done():
	}
	return false
}

// End returns the request's place and charges its tokens.
func (l Lease) End(tokens int, now time.Time) {
	if l.a == nil {
		return
	}
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	tokens = max(tokens, 0)
	l.a.spent += int64(tokens)
	if !l.covered {
		l.a.take(Concurrent, -1, now)
	}
	l.a.buckets[Tokens].Free(l.a.limiter.memberOf(), now)
	l.a.take(Tokens, int64(tokens), now)
}

// AdmitWaiting counts a request of a team that begins to wait, or refuses it. Without a refusal
// EndWaiting must be called exactly once when the wait ends.
func (l *Limits) AdmitWaiting(team string, now time.Time) *Refusal {
	_, r := l.admit(team, now, Held)
	if r != nil {
		r.RetryAfter = heldRetry
	}
	return r
}

// heldRetry is the Retry-After of a refusal of AdmitWaiting.
const heldRetry = 5 * time.Second

// EndWaiting ends one AdmitWaiting.
func (l *Limits) EndWaiting(team string, now time.Time) {
	a := l.account(team)
	a.mu.Lock()
	a.take(Held, -1, now)
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
	return l.a.buckets[Tokens].Size() > 0
}

// settings are what the team's file says of it; nothing where it has none.
func (l *Limits) settings(team string) (limits functions.Limits, priority functions.Priority) {
	a := l.all()[team]
	if a == nil {
		return limits, ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limits, a.priority
}

// SpendPerDay is how much money the team may spend a day; 0 is no limit.
func (l *Limits) SpendPerDay(team string) float64 {
	limits, _ := l.settings(team)
	return limits.SpendPerDay
}

// SpendLimits are the teams whose money is limited, each with its SpendPerDay.
func (l *Limits) SpendLimits() map[string]float64 {
	limits := map[string]float64{}
	for team := range l.all() {
		if n := l.SpendPerDay(team); n > 0 {
			limits[team] = n
		}
	}
	return limits
}

// MaxPriority is the highest priority that requests of the team may have; "" is any.
func (l *Limits) MaxPriority(team string) functions.Priority {
	_, priority := l.settings(team)
	return priority
}

// AdmitColdStart counts a cold start of a team or refuses it.
func (l *Limits) AdmitColdStart(team string, now time.Time) *Refusal {
	_, r := l.admit(team, now, ColdStarts)
	return r
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

// SetFields sets the fields of an answer with the rest of the limits that there are.
func (u Usage) SetFields(res interface{ Set(name, value string) }) {
	if n := u.Limits.RequestsPerMinute; n > 0 {
		res.Set("x-ratelimit-limit-requests", strconv.Itoa(n))
		res.Set("x-ratelimit-remaining-requests", strconv.Itoa(u.Requests))
		res.Set("x-ratelimit-reset-requests", u.RequestsReset.Round(time.Millisecond).String())
	}
	if n := u.Limits.TokensPerMinute; n > 0 {
		res.Set("x-ratelimit-limit-tokens", strconv.Itoa(n))
		res.Set("x-ratelimit-remaining-tokens", strconv.Itoa(u.Tokens))
		res.Set("x-ratelimit-reset-tokens", u.TokensReset.Round(time.Millisecond).String())
	}
}

func (l *Limits) Usage(team string, now time.Time) Usage {
	a := l.all()[team]
	if a == nil {
		return Usage{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.limiter.memberOf()
	requests, tokens := &a.buckets[Requests], &a.buckets[Tokens]
	return Usage{
		Limits:        a.limits,
		Active:        a.buckets[Concurrent].Used(),
		Held:          a.buckets[Held].Used(),
		Requests:      requests.Left(m, now),
		Tokens:        tokens.Left(m, now),
		ColdStarts:    a.buckets[ColdStarts].Left(m, now),
		Spent:         a.spent,
		RequestsReset: requests.Until(float64(requests.Size()), m, now),
		TokensReset:   tokens.Until(float64(tokens.Size()), m, now),
	}
}
