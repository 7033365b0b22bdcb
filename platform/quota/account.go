package quota

import (
	"fmt"
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

const daySeconds = 24 * 60 * 60

// RefreshEvery is the longest time between two settlements of all accounts.
const RefreshEvery = 2 * time.Second

// Account holds the current resources of one team, and its use so far.
type Account struct {
	Name   string
	Spec   functions.TeamSpec
	Stored functions.Bytes // its checkpoints on all nodes; counted only if its share of the stores is limited
	Entry                  // the part that survives a restart

	held            Holdings
	at              placement.Instant // use is counted up to this moment
	day             int64             // the day of Today, in days since 1970, UTC
	overBudgetUntil placement.Instant // 0: within the budget
}

// Entry is the part of an account that is stored.
type Entry struct {
	Today  float64 `json:"gpu_seconds_today"`
	Total  float64 `json:"gpu_seconds"`
	Used   float64 `json:"used"`   // GPU-seconds in use, decayed
	Hosted float64 `json:"hosted"` // seconds of replicas without GPUs in use, decayed

	Inflicted uint64 `json:"evictions_inflicted"` // replicas of other teams evicted for this one
	Suffered  uint64 `json:"evictions_suffered"`  // replicas of this team evicted for others
	Thrash    uint64 `json:"thrash"`              // functions evicted and started again soon after
}

// Holdings are the resources of a function, or of all functions of a team.
type Holdings struct {
	GPUs     int // held
	GPUsUsed int // held by replicas that are not idle
	Hosts    int // replicas without GPUs that are not idle
}

// HoldingsOf returns the resources that the replicas of f hold. Only busy replicas
// count as use: an idle one is evicted for any other function.
func HoldingsOf(f *placement.Function) (h Holdings) {
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if r.Asleep() {
			continue
		}
		idle := r.State == functions.Ready && r.InFlight == 0 && f.Queued == 0 && !r.Stopping && !r.GoingToSleep
		switch {
		case r.Reserved.GPUs > 0 && !idle:
			h.GPUsUsed += r.Reserved.GPUs
			fallthrough
		case r.Reserved.GPUs > 0:
			h.GPUs += r.Reserved.GPUs
		case !idle:
			h.Hosts++
		}
	}
	return h
}

// Charge replaces one function's holdings, was, by is from now on.
func (a *Account) Charge(was, is Holdings, now placement.Instant, wall time.Time) {
	a.Settle(now, wall)
	a.held.GPUs += is.GPUs - was.GPUs
	a.held.GPUsUsed += is.GPUsUsed - was.GPUsUsed
	a.held.Hosts += is.Hosts - was.Hosts
}

// Settle adds the use of the team until now. A now in the past adds nothing.
func (a *Account) Settle(now placement.Instant, wall time.Time) {
	span := (now - a.at).Seconds()
	a.at = max(a.at, now)
	if span > 0 {
		tau := placement.UseDecay.Seconds()
		keep := math.Exp(-span / tau)
		gain := tau * (1 - keep)
		a.Used = a.Used*keep + float64(a.held.GPUsUsed)*gain
		a.Hosted = a.Hosted*keep + float64(a.held.Hosts)*gain
		a.Total += float64(a.held.GPUs) * span
		a.Today += float64(a.held.GPUs) * span
		if a.Used < 1e-3 && a.held.GPUsUsed == 0 {
			a.Used = 0
		}
		if a.Hosted < 1e-3 && a.held.Hosts == 0 {
			a.Hosted = 0
		}
	}
	if day := dayOf(wall); day > a.day { // only forward: setting the clock back grants no second budget
		a.day = day
		a.Today = float64(a.held.GPUs) * min(max(span, 0), float64(wall.Unix()%daySeconds))
	}
}

func dayOf(t time.Time) int64 { return t.Unix() / daySeconds }

// CheckBudget updates whether the GPU-seconds of today are used up. It reports whether
// that changed: by use, a new day or another limit.
func (a *Account) CheckBudget(now placement.Instant, wall time.Time) (changed bool) {
	limit := float64(a.Spec.Limits.GPUSecondsPerDay)
	over := limit > 0 && a.Today >= limit
	if over == a.OverBudget() {
		return false
	}
	a.overBudgetUntil = 0
	if over {
		a.overBudgetUntil = now + time.Duration(daySeconds-wall.Unix()%daySeconds)*time.Second + RefreshEvery
	}
	return true
}

// OverBudget reports whether the GPU-seconds of today are used up, as CheckBudget
// found it.
func (a *Account) OverBudget() bool { return a.overBudgetUntil > 0 }

// Team returns the account in the form that package placement reads.
func (a *Account) Team() placement.Team {
	x := placement.Team{TeamGPUs: a.Spec.GPUs, Used: a.Used, Hosted: a.Hosted, OverBudget: a.overBudgetUntil}
	if a.OverBudget() {
		x.Verdict = placement.Verdict{
			Code: placement.CodeBudget, ETA: -1,
			Message: fmt.Sprintf("team %s has used its %d GPU-seconds of today; more come at midnight UTC", a.Name, a.Spec.Limits.GPUSecondsPerDay),
		}
	}
	return x
}

// Use returns the account in the form of the control API.
func (a *Account) Use(wall time.Time) functions.TeamUse {
	u := functions.TeamUse{
		GPUs: a.held.GPUs, Today: a.Today, Total: a.Total, RecentGPUs: a.Used / placement.UseDecay.Seconds(),
		EvictionsInflicted: a.Inflicted, EvictionsSuffered: a.Suffered, Thrash: a.Thrash, OverBudget: a.OverBudget(),
	}
	if l := a.Spec.Limits.GPUSecondsPerDay; l > 0 {
		left, resets := max(0, float64(l)-a.Today), time.Unix((dayOf(wall)+1)*daySeconds, 0).UTC()
		u.Left, u.Resets = &left, &resets
	}
	return u
}

// Accounts holds the accounts of all teams. It is not safe for concurrent use.
type Accounts struct {
	teams  map[string]*Account
	list   []*Account // in the order of their creation
	ledger *Ledger    // nil: accounts end with the process
}

// NewAccounts restores the accounts of a ledger, which may be nil.
func NewAccounts(l *Ledger) *Accounts { return &Accounts{teams: map[string]*Account{}, ledger: l} }

// All returns the accounts in the order of their creation.
func (a *Accounts) All() []*Account { return a.list }

// Find returns the account of a team, nil if it has none.
func (a *Accounts) Find(team string) *Account { return a.teams[team] }

// Of returns the account of a team; a new one begins at now.
func (a *Accounts) Of(team string, now placement.Instant, wall time.Time) *Account {
	t := a.teams[team]
	if t == nil {
		t = &Account{Name: team, at: now, day: dayOf(wall)}
		if a.ledger != nil {
			if e, ok := a.ledger.entries[team]; ok {
				t.Entry = e
				if a.ledger.day != t.day {
					t.Today = 0
				}
			}
		}
		a.teams[team] = t
		a.list = append(a.list, t)
	}
	return t
}

// Teams returns all accounts in the form that package placement reads.
func (a *Accounts) Teams() map[string]placement.Team {
	teams := make(map[string]placement.Team, len(a.list))
	for _, t := range a.list {
		teams[t.Name] = t.Team()
	}
	return teams
}
