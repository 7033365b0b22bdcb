package orchestrator

import (
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/quota"
)

// accountOf returns the account of a team.
func (s *Orchestrator) accountOf(team string) *quota.Account {
	return s.accounts.Of(team, s.lastTurn, s.timeNow())
}

// chargeTeam charges f's team for the resources that f holds now.
func (s *Orchestrator) chargeTeam(f *functionState, now placement.Instant) {
	if h := quota.HoldingsOf(&f.Function); h != f.charged {
		s.accountOf(f.Name.Team).Charge(f.charged, h, now, s.timeNow())
		f.charged = h
	}
}

// settleTeams settles all accounts and passes them to the planner: every
// quota.RefreshEvery, and when the catalogue has changed.
func (s *Orchestrator) settleTeams(now placement.Instant, changed bool) {
	if !changed && now-s.settledAt < quota.RefreshEvery {
		return
	}
	s.settledAt = now
	for _, t := range s.accounts.All() {
		t.Settle(now, s.timeNow())
		s.checkDailyBudget(t, now)
	}
	s.checkStoreShares()
	// A single team has no competitor, and each update of teams makes the planner
	// evaluate every waiting function again.
	if len(s.accounts.All()) < 2 && !changed && !s.budgetsChanged {
		return
	}
	s.budgetsChanged = false
	s.planner.Teams(s.accounts.Teams())
}

// checkDailyBudget reports a team whose GPU-seconds of the day are used up, or
// available again.
func (s *Orchestrator) checkDailyBudget(t *quota.Account, now placement.Instant) {
	if !t.CheckBudget(now, s.timeNow()) {
		return
	}
	s.budgetsChanged = true
	if t.OverBudget() {
		s.event("budget_spent", functions.Name{}, "", "", "gpu_seconds", fmt.Sprintf("team %s has used %.0f of %.0f GPU-seconds today", t.Name, t.Today, float64(t.Spec.Limits.GPUSecondsPerDay)))
	} else {
		s.event("budget_back", functions.Name{}, "", "", "gpu_seconds", "team "+t.Name)
	}
	for _, f := range s.functionList {
		if f.Name.Team == t.Name {
			s.enqueue(f)
		}
	}
}

// checkStoreShares keeps the checkpoints of teams within their shares of the stores: a
// checkpoint beyond the share is staged on no further node.
func (s *Orchestrator) checkStoreShares() {
	limited := false
	for _, t := range s.accounts.All() {
		t.Stored = 0
		limited = limited || t.Spec.Limits.StoreBytes > 0
	}
	if !limited && !s.storeLimited {
		return
	}
	s.storeLimited = limited
	seen := map[[2]string]bool{} // team and source: functions with one checkpoint count once
	for _, f := range s.functionList {
		if f.Gone || f.Source == "" || f.Machine != "" { // folders are used in place
			continue
		}
		t := s.accountOf(f.Name.Team)
		for _, r := range f.replicas { // a checkpoint being staged counts as stored
			if n := s.nodes[r.node]; r.status.State == functions.Downloading && n != nil && !n.Cached[f.Source] {
				t.Stored += s.sizes[f.Source]
			}
		}
		if key := [2]string{t.Name, f.Source}; t.Spec.Limits.StoreBytes > 0 && !seen[key] {
			seen[key] = true
			t.Stored += s.sizes[f.Source] * functions.Bytes(s.copies[f.Source])
		}
	}
	for _, f := range s.functionList {
		t, size, why := s.accountOf(f.Name.Team), s.sizes[f.Source], ""
		if limit := t.Spec.Limits.StoreBytes; limit > 0 && size > 0 && f.Machine == "" && t.Stored+size > limit {
			why = fmt.Sprintf("team %s may keep %s of checkpoints, %s are kept, and this one has %s; thaw cache shows them", t.Name, limit.Human(), t.Stored.Human(), size.Human())
		}
		if why != f.CachedNodesOnly && !f.Gone {
			f.CachedNodesOnly = why
			s.enqueue(f)
		}
	}
}

// recordEviction charges an eviction to the accounts of both teams.
func (s *Orchestrator) recordEviction(a *placement.Action, now placement.Instant) {
	if a.For == "" {
		return
	}
	by, err := functions.ParseName(a.For, "")
	if err != nil {
		return
	}
	if by.Team != a.Function.Team {
		s.accountOf(by.Team).Inflicted++
		s.accountOf(a.Function.Team).Suffered++
	}
	if a.Reason == "evicted" {
		s.ghosts.Evicted(a.Function, now)
	}
}

// recordRestart records that f is started or woken. Soon after an eviction that is
// thrash, and f's replicas are protected for a while.
func (s *Orchestrator) recordRestart(f *functionState, now placement.Instant) {
	back := f.ColdStart
	if back <= 0 {
		back = max(f.starts.Forecast(s.bytesAtHand(f)).P50, 0)
	}
	missed, stay := s.ghosts.Loaded(f.Name, back, now)
	if !missed {
		return
	}
	s.counts.add("thaw_thrash_total", 1)
	s.accountOf(f.Name.Team).Thrash++
	text := "it was evicted and is back soon after"
	if s.policy.AppliesMinResidency() {
		f.MinResidency = now + stay
		s.enqueue(f)
		text = fmt.Sprintf("it was evicted and is back so soon that it stays for %v", stay.Round(time.Second))
	}
	s.event("missed", f.Name, "", "", "thrash", text)
}

// TeamUse returns the holdings and the use of a team, zero for an unknown team.
func (s *Orchestrator) TeamUse(team string) functions.TeamUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.accounts.Find(team)
	if t == nil {
		return functions.TeamUse{}
	}
	t.Settle(s.lastTurn, s.timeNow())
	return t.Use(s.timeNow())
}

// saveLedger stores the accounts: every 30 s, with last at once. It is called between
// turns.
func (s *Orchestrator) saveLedger(last bool) {
	s.mu.Lock()
	write := s.accounts.Snapshot(s.lastTurn, s.timeNow(), last)
	s.mu.Unlock()
	if write == nil {
		return
	}
	if err := write(); err != nil {
		s.log.Error("the accounts of teams are not kept", "error", err)
	}
}

// metricTeams bounds the number of team labels.
const metricTeams = 1000

func (s *Orchestrator) sampleTeams(yield func(metric string, value float64, labels ...string)) {
	type row struct {
		name                string
		total               float64
		inflicted, suffered uint64
	}
	s.mu.Lock()
	rows := make([]row, 0, len(s.accounts.All()))
	for _, t := range s.accounts.All()[:min(len(s.accounts.All()), metricTeams)] {
		t.Settle(s.lastTurn, s.timeNow())
		rows = append(rows, row{t.Name, t.Total, t.Inflicted, t.Suffered})
	}
	s.mu.Unlock()
	for _, r := range rows {
		yield("thaw_team_gpu_seconds_total", r.total, r.name)
		yield("thaw_team_evictions_total", float64(r.inflicted), r.name, "inflicted")
		yield("thaw_team_evictions_total", float64(r.suffered), r.name, "suffered")
	}
}
