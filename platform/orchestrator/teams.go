package orchestrator

import (
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/quota"
	"github.com/thaw-dev/thaw/platform/setbacks"
)

// teamAccounts charges teams for the resources of their functions, and applies their
// daily budgets and shares of the stores.
type teamAccounts struct {
	*quota.Accounts
	settledAt      placement.Instant
	storeLimited   bool            // some team's share of the stores is limited
	budgetsChanged bool            // a team's budget was used up or became available
	ghosts         setbacks.Ghosts // recently evicted functions
	keepRestarted  bool            // functions evicted too early are protected after their restart

	*world
}

func (a *teamAccounts) account(team string) *quota.Account {
	return a.Of(team, a.lastTurn, a.timeNow())
}

func (a *teamAccounts) charge(f *functionState, now placement.Instant) {
	if h := quota.HoldingsOf(&f.Function); h != f.charged {
		a.account(f.Name.Team).Charge(f.charged, h, now, a.timeNow())
		f.charged = h
	}
}

// settle settles all accounts and passes them to the planner: every
// quota.RefreshEvery, and when the catalogue has changed.
func (a *teamAccounts) settle(now placement.Instant, changed bool) {
	if !changed && now-a.settledAt < quota.RefreshEvery {
		return
	}
	a.settledAt = now
	for _, t := range a.All() {
		t.Settle(now, a.timeNow())
		a.checkDailyBudget(t, now)
	}
	a.checkStoreShares()
	// A single team has no competitor, and each update of teams makes the planner
	// evaluate every waiting function again.
	if len(a.All()) < 2 && !changed && !a.budgetsChanged {
		return
	}
	a.budgetsChanged = false
	a.planner.Teams(a.Teams())
}

// checkDailyBudget reports a team whose GPU-seconds of the day are used up, or
// available again.
func (a *teamAccounts) checkDailyBudget(t *quota.Account, now placement.Instant) {
	if !t.CheckBudget(now, a.timeNow()) {
		return
	}
	a.budgetsChanged = true
	if t.OverBudget() {
		a.event("budget_spent", functions.Name{}, "", "", "gpu_seconds",
			fmt.Sprintf("team %s has used %.0f of %.0f GPU-seconds today", t.Name, t.Today, float64(t.Spec.Limits.GPUSecondsPerDay)))
	} else {
		a.event("budget_available", functions.Name{}, "", "", "gpu_seconds", "team "+t.Name)
	}
	for _, f := range a.functionList {
		if f.Name.Team == t.Name {
			a.enqueue(f)
		}
	}
}

// checkStoreShares keeps the checkpoints of teams within their shares of the stores: a
// checkpoint beyond the share is staged on no further node.
func (a *teamAccounts) checkStoreShares() {
	limited := false
	for _, t := range a.All() {
		t.Stored = 0
		limited = limited || t.Spec.Limits.StoreBytes > 0
	}
	if !limited && !a.storeLimited {
		return
	}
	a.storeLimited = limited
	seen := map[[2]string]bool{} // team and source: functions with one checkpoint count once
	for _, f := range a.functionList {
		if f.Gone || f.Source == "" || f.Machine != "" { // folders are used in place
			continue
		}
		t := a.account(f.Name.Team)
		for _, r := range f.replicas { // a checkpoint being staged counts as stored
			if n := a.nodes[r.Node]; r.status.State == functions.Downloading && n != nil && !n.Cached[f.Source] {
				t.Stored += a.sizes[f.Source]
			}
		}
		if key := [2]string{t.Name, f.Source}; t.Spec.Limits.StoreBytes > 0 && !seen[key] {
			seen[key] = true
			t.Stored += a.sizes[f.Source] * functions.Bytes(a.copies[f.Source])
		}
	}
	for _, f := range a.functionList {
		t, size, why := a.account(f.Name.Team), a.sizes[f.Source], ""
		if limit := t.Spec.Limits.StoreBytes; limit > 0 && size > 0 && f.Machine == "" && t.Stored+size > limit {
			why = fmt.Sprintf("team %s may keep %s of checkpoints, %s are kept, and this one has %s; thaw cache shows them", t.Name, limit.Human(),
				t.Stored.Human(), size.Human())
		}
		if why != f.CachedNodesOnly && !f.Gone {
			f.CachedNodesOnly = why
			a.enqueue(f)
		}
	}
}

func (a *teamAccounts) recordEviction(x *placement.Action, now placement.Instant) {
	if x.For == "" {
		return
	}
	by, err := functions.ParseName(x.For, "")
	if err != nil {
		return
	}
	if by.Team != x.Function.Team {
		a.account(by.Team).Inflicted++
		a.account(x.Function.Team).Suffered++
	}
	if x.Reason == "evicted" {
		a.ghosts.Evicted(x.Function, now)
	}
}

// recordRestart records that f is started or woken. Soon after an eviction that is
// thrash, and f's replicas are protected for a while.
func (a *teamAccounts) recordRestart(f *functionState, now placement.Instant) {
	if f.OnlyLow() {
		return // it is not protected for these
	}
	back := f.ColdStart
	if back <= 0 {
		back = max(f.starts.Forecast(a.bytesAtHand(f)).P50, 0)
	}
	missed, stay := a.ghosts.Loaded(f.Name, back, now)
	if !missed {
		return
	}
	a.counts.Add("thaw_thrash_total", 1)
	a.account(f.Name.Team).Thrash++
	text := "it was evicted and is back soon after"
	if a.keepRestarted {
		f.MinResidency = now + stay
		a.enqueue(f)
		text = fmt.Sprintf("it was evicted and is back so soon that it stays for %v", stay.Round(time.Second))
	}
	a.event("evicted_too_early", f.Name, "", "", "thrash", text)
}

// TeamUse returns the holdings and the use of a team, zero for an unknown team.
func (o *Orchestrator) TeamUse(team string) functions.TeamUse {
	o.loop.Lock()
	defer o.loop.Unlock()
	t := o.loop.teams.Find(team)
	if t == nil {
		return functions.TeamUse{}
	}
	t.Settle(o.loop.lastTurn, o.loop.timeNow())
	return t.Use(o.loop.timeNow())
}

// save stores the accounts: every 30 s, with last at once. It is called between
// turns.
func (a *teamAccounts) save(last bool) {
	a.Lock()
	write := a.Snapshot(a.lastTurn, a.timeNow(), last)
	a.Unlock()
	if write == nil {
		return
	}
	if err := write(); err != nil {
		a.log.Error("the accounts of teams are not kept", "error", err)
	}
}

const metricTeams = 1000

func (a *teamAccounts) sample(yield func(metric string, value float64, labels ...string)) {
	a.Lock()
	teams := a.All()[:min(len(a.All()), metricTeams)]
	rows := make([]quota.Account, len(teams))
	for i, t := range teams {
		t.Settle(a.lastTurn, a.timeNow())
		rows[i] = *t
	}
	a.Unlock()
	for i := range rows {
		t := &rows[i]
		yield("thaw_team_gpu_seconds_total", t.Total, t.Name)
		yield("thaw_team_evictions_total", float64(t.Inflicted), t.Name, "inflicted")
		yield("thaw_team_evictions_total", float64(t.Suffered), t.Name, "suffered")
	}
}
