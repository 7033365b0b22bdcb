package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/placement"
)

// teamAccount is what one team has had and has of the fleet.
type teamAccount struct {
	name string
	spec functions.TeamSpec

	gpusHeld         int               // GPUs its replicas hold now
	gpusUsed         int               // of those, what is not idle: whoever asks for an idle one has it
	hostReplicasUsed int               // its replicas without GPUs that are not idle
	storedBytes      functions.Bytes   // of its checkpoints, on all nodes; where it has a share
	at               placement.Instant // until when what follows is counted
	day              int64             // which day Today is of, UTC

	ledgerEntry                       // what outlives the server
	overBudgetUntil placement.Instant // it has used up its GPU-seconds of the day
}

type ledgerEntry struct {
	Today  float64 `json:"gpu_seconds_today"`
	Total  float64 `json:"gpu_seconds"`
	Used   float64 `json:"used"`   // GPU-seconds in use, decayed
	Hosted float64 `json:"hosted"` // seconds of replicas without GPUs in use, decayed

	Inflicted uint64 `json:"evictions_inflicted"` // on other teams
	Suffered  uint64 `json:"evictions_suffered"`  // from other teams
	Thrash    uint64 `json:"thrash"`              // evicted and missed soon after
}

const (
	accountEvery = 2 * time.Second  // how old what the core is told of teams' use may be
	ledgerEvery  = 30 * time.Second // how old the file of accounts may be
	daySeconds   = 24 * 60 * 60
)

// accountOf is the account of a team.
func (s *Orchestrator) accountOf(name string) *teamAccount {
	t := s.teams[name]
	if t == nil {
		t = &teamAccount{name: name, at: s.lastTurn}
		t.day = dayOf(s.timeNow())
		if s.ledger != nil {
			if e, ok := s.ledger.entries[name]; ok {
				t.ledgerEntry = e
				if s.ledger.day != t.day {
					t.Today = 0
				}
			}
		}
		s.teams[name] = t
		s.accounts = append(s.accounts, t)
	}
	return t
}

func dayOf(t time.Time) int64 { return t.Unix() / daySeconds }

// settleAccount counts what a team has held until now.
func (s *Orchestrator) settleAccount(t *teamAccount, now placement.Instant) {
	span := (now - t.at).Seconds()
	t.at = max(t.at, now)
	if span > 0 {
		tau := placement.UseDecay.Seconds()
		keep := math.Exp(-span / tau)
		gain := tau * (1 - keep)
		t.Used = t.Used*keep + float64(t.gpusUsed)*gain
		t.Hosted = t.Hosted*keep + float64(t.hostReplicasUsed)*gain
		t.Total += float64(t.gpusHeld) * span
		t.Today += float64(t.gpusHeld) * span
		if t.Used < 1e-3 && t.gpusUsed == 0 {
			t.Used = 0
		}
		if t.Hosted < 1e-3 && t.hostReplicasUsed == 0 {
			t.Hosted = 0
		}
	}
	if wall := s.timeNow(); dayOf(wall) > t.day { // never back: a clock that is put back gives no second budget
		t.day = dayOf(wall)
		t.Today = float64(t.gpusHeld) * min(max(span, 0), float64(wall.Unix()%daySeconds))
	}
}

// teamCharge is what a team is charged for a function.
type teamCharge struct{ held, using, hosted int }

// chargeTeam takes in what f holds now. A share of the fleet is what is in use: idle
// replicas keep nobody from anything, they leave for whoever asks.
func (s *Orchestrator) chargeTeam(f *functionState, now placement.Instant) {
	var c teamCharge
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if down := r.State == functions.Sleeping || r.State == functions.Draining && r.SleptAt > 0; down && !r.GoingToSleep && !r.WakingUp {
			continue
		}
		idle := r.State == functions.Ready && r.InFlight == 0 && f.Queued == 0 && !r.Stopping && !r.GoingToSleep
		switch {
		case r.Reserved.GPUs > 0 && !idle:
			c.using += r.Reserved.GPUs
			fallthrough
		case r.Reserved.GPUs > 0:
			c.held += r.Reserved.GPUs
		case !idle:
			c.hosted++
		}
	}
	if c == f.charged {
		return
	}
	t := s.accountOf(f.Name.Team)
	s.settleAccount(t, now)
	t.gpusHeld += c.held - f.charged.held
	t.gpusUsed += c.using - f.charged.using
	t.hostReplicasUsed += c.hosted - f.charged.hosted
	f.charged = c
}

// settleTeams settles all teams and tells the core, once in a while or because the
// catalogue has changed.
func (s *Orchestrator) settleTeams(now placement.Instant, changed bool) {
	if !changed && now-s.settledAt < accountEvery {
		return
	}
	s.settledAt = now
	for _, t := range s.accounts {
		s.settleAccount(t, now)
		s.checkDailyBudget(t, now)
	}
	s.checkStoreShares()
	// One team alone competes with nobody, and the core looks at everyone who
	// waits again when it hears of teams.
	if len(s.accounts) < 2 && !changed && !s.budgetsChanged {
		return
	}
	s.budgetsChanged = false
	teams := make(map[string]placement.Team, len(s.accounts))
	for _, t := range s.accounts {
		x := placement.Team{TeamGPUs: t.spec.GPUs, Used: t.Used, Hosted: t.Hosted, OverBudget: t.overBudgetUntil}
		if t.overBudgetUntil > 0 {
			x.Verdict = placement.Verdict{
				Code: placement.CodeBudget, ETA: -1,
				Message: fmt.Sprintf("team %s has used its %d GPU-seconds of today; more come at midnight UTC", t.name, t.spec.Limits.GPUSecondsPerDay),
			}
		}
		teams[t.name] = x
	}
	s.placementWorld.Teams = teams
	s.planner.Teams(teams)
}

// checkDailyBudget takes the GPUs from a team whose budget of the day is used up, and gives
// them back with the next day or a larger budget.
func (s *Orchestrator) checkDailyBudget(t *teamAccount, now placement.Instant) {
	limit := float64(t.spec.Limits.GPUSecondsPerDay)
	over := limit > 0 && t.Today >= limit
	if over == (t.overBudgetUntil > 0) {
		return
	}
	t.overBudgetUntil, s.budgetsChanged = 0, true
	if over {
		t.overBudgetUntil = now + time.Duration(daySeconds-s.timeNow().Unix()%daySeconds)*time.Second + accountEvery
		s.event("budget_spent", functions.Name{}, "", "", "gpu_seconds", fmt.Sprintf("team %s has used %.0f of %.0f GPU-seconds today", t.name, t.Today, limit))
	} else {
		s.event("budget_back", functions.Name{}, "", "", "gpu_seconds", "team "+t.name)
	}
	for _, f := range s.functionList {
		if f.Name.Team == t.name {
			s.enqueue(f)
		}
	}
}

// checkStoreShares keeps the checkpoints of a team that has a share of the stores within
// it: what would go beyond is brought to no node that lacks it.
func (s *Orchestrator) checkStoreShares() {
	limited := false
	for _, t := range s.accounts {
		t.storedBytes = 0
		limited = limited || t.spec.Limits.StoreBytes > 0
	}
	if !limited && !s.storeLimited {
		return
	}
	s.storeLimited = limited
	seen := map[[2]string]bool{} // team and source: a checkpoint of two functions is kept once
	for _, f := range s.functionList {
		if f.Gone || f.Source == "" || f.Machine != "" { // folders are used in place
			continue
		}
		t := s.accountOf(f.Name.Team)
		for _, r := range f.replicas { // what is on its way is as good as kept
			if n := s.nodes[r.node]; r.status.State == functions.Downloading && n != nil && !n.Cached[f.Source] {
				t.storedBytes += s.sizes[f.Source]
			}
		}
		if key := [2]string{t.name, f.Source}; t.spec.Limits.StoreBytes > 0 && !seen[key] {
			seen[key] = true
			t.storedBytes += s.sizes[f.Source] * functions.Bytes(s.copies[f.Source])
		}
	}
	for _, f := range s.functionList {
		t, size, why := s.accountOf(f.Name.Team), s.sizes[f.Source], ""
		if limit := t.spec.Limits.StoreBytes; limit > 0 && size > 0 && f.Machine == "" && t.storedBytes+size > limit {
			why = fmt.Sprintf("team %s may keep %s of checkpoints, %s are kept, and this one has %s; thaw cache shows them", t.name, limit.Human(), t.storedBytes.Human(), size.Human())
		}
		if why != f.CachedNodesOnly && !f.Gone {
			f.CachedNodesOnly = why
			s.enqueue(f)
		}
	}
}

// recordEviction keeps the account of an eviction.
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

// recordRestart notes that f is started or woken: soon after an eviction that is
// thrash, and f is left alone for a while.
func (s *Orchestrator) recordRestart(f *functionState, now placement.Instant) {
	back := f.ColdStart
	if back <= 0 {
		back = max(f.starts.forecast(s.bytesAtHand(f)).P50, 0)
	}
	missed, stay := s.ghosts.Loaded(f.Name, back, now)
	if !missed {
		return
	}
	s.counts.thrash.Inc()
	s.accountOf(f.Name.Team).Thrash++
	text := "it was evicted and is back soon after"
	if s.policy.AppliesMinResidency() {
		f.MinResidency = now + stay
		s.enqueue(f)
		text = fmt.Sprintf("it was evicted and is back so soon that it stays for %v", stay.Round(time.Second))
	}
	s.event("missed", f.Name, "", "", "thrash", text)
}

// TeamUse is the account of a team now; that of one that never held anything is
// zero.
func (s *Orchestrator) TeamUse(team string) functions.TeamUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.teams[team]
	if t == nil {
		return functions.TeamUse{}
	}
	s.settleAccount(t, max(s.lastTurn, t.at))
	u := functions.TeamUse{
		GPUs: t.gpusHeld, Today: t.Today, Total: t.Total, Lately: t.Used / placement.UseDecay.Seconds(),
		Inflicted: t.Inflicted, Suffered: t.Suffered, Thrash: t.Thrash, OverBudget: t.overBudgetUntil > 0,
	}
	if l := t.spec.Limits.GPUSecondsPerDay; l > 0 {
		left, resets := max(0, float64(l)-t.Today), time.Unix((dayOf(s.timeNow())+1)*daySeconds, 0).UTC()
		u.Left, u.Resets = &left, &resets
	}
	return u
}

// Ledger is where the accounts of teams outlive the server: a file, or what
// NewLedger is told. A Ledger belongs to one Steer.
type Ledger struct {
	save    func(text []byte) error
	day     int64
	entries map[string]ledgerEntry
	written placement.Instant
}

type ledgerFile struct {
	Day   int64                  `json:"day"` // since 1970, UTC
	Teams map[string]ledgerEntry `json:"teams"`
}

// maxLedger is the largest file of accounts that is read.
const maxLedger = 16 << 20

// OpenLedger reads the accounts at path, where there are any. A file that cannot
// be understood is moved aside, and the error says so; the Ledger is good in any
// case, and empty then.
func OpenLedger(path string) (*Ledger, error) {
	l := &Ledger{save: func(text []byte) error { return durable.WriteFile(path, text, 0o600) }, entries: map[string]ledgerEntry{}}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	var f ledgerFile
	if err == nil && info.Size() > maxLedger {
		err = fmt.Errorf("%d bytes are too many", info.Size())
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		f, err = readLedger(data)
	}
	if err != nil {
		aside := path + ".damaged"
		return l, fmt.Errorf("accounts of teams: %s is put aside as %s and begun anew: %w", path, filepath.Base(aside), errors.Join(err, os.Rename(path, aside)))
	}
	l.day, l.entries = f.Day, f.Teams
	return l, nil
}

// NewLedger reads accounts that are kept elsewhere, as keep was given them; none is
// no text. keep is called between turns and returns at once. The Ledger is good also
// where the text cannot be understood, and empty then.
func NewLedger(text []byte, keep func(text []byte)) (*Ledger, error) {
	l := &Ledger{save: func(text []byte) error { keep(text); return nil }, entries: map[string]ledgerEntry{}}
	if len(text) == 0 {
		return l, nil
	}
	f, err := readLedger(text)
	if err != nil {
		return l, err
	}
	l.day, l.entries = f.Day, f.Teams
	return l, nil
}

func readLedger(data []byte) (f ledgerFile, err error) {
	if err := json.Unmarshal(data, &f); err != nil {
		return ledgerFile{}, err
	}
	if f.Teams == nil {
		f.Teams = map[string]ledgerEntry{}
	}
	for name, e := range f.Teams {
		for _, x := range []float64{e.Today, e.Total, e.Used, e.Hosted} {
			if x < 0 || math.IsNaN(x) || math.IsInf(x, 0) {
				return ledgerFile{}, fmt.Errorf("team %.80q: %v is no account", name, x)
			}
		}
		if !functions.IsLabel(name) {
			return ledgerFile{}, fmt.Errorf("%.80q is no team", name)
		}
	}
	return f, nil
}

// saveLedger writes the accounts, once in a while or, at the end, anyway. It is called
// between turns.
func (s *Orchestrator) saveLedger(last bool) {
	if s.ledger == nil {
		return
	}
	s.mu.Lock()
	now := s.lastTurn
	if !last && now-s.ledger.written < ledgerEvery {
		s.mu.Unlock()
		return
	}
	s.ledger.written = now
	f := ledgerFile{Teams: make(map[string]ledgerEntry, len(s.accounts)+len(s.ledger.entries))}
	for name, e := range s.ledger.entries { // of teams that have not been heard of in this life
		e.Today = 0
		f.Teams[name] = e
	}
	today := dayOf(s.timeNow())
	if s.ledger.day == today {
		for name, e := range s.ledger.entries {
			f.Teams[name] = e
		}
	}
	f.Day = today
	for _, t := range s.accounts {
		s.settleAccount(t, max(now, t.at))
		f.Day = max(f.Day, t.day)
		if t.ledgerEntry != (ledgerEntry{}) {
			f.Teams[t.name] = t.ledgerEntry
		}
	}
	s.mu.Unlock()
	data, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = s.ledger.save(append(data, '\n'))
	}
	if err != nil {
		s.log.Error("the accounts of teams are not kept", "error", err)
	}
}

var (
	teamGPUDesc   = prometheus.NewDesc("thaw_team_gpu_seconds_total", "GPU-seconds that replicas of a team have held.", []string{"team"}, nil)
	teamEvictDesc = prometheus.NewDesc("thaw_team_evictions_total", "Replicas that made way between teams; side is inflicted (on others, for this team's) or suffered.", []string{"team", "side"}, nil)
)

// metricTeams bounds the labels; a fleet has fewer teams.
const metricTeams = 1000

func (s *Orchestrator) collectTeams(ch chan<- prometheus.Metric) {
	type row struct {
		name                string
		total               float64
		inflicted, suffered uint64
	}
	s.mu.Lock()
	rows := make([]row, 0, len(s.accounts))
	for _, t := range s.accounts[:min(len(s.accounts), metricTeams)] {
		s.settleAccount(t, max(s.lastTurn, t.at))
		rows = append(rows, row{t.name, t.Total, t.Inflicted, t.Suffered})
	}
	s.mu.Unlock()
	for _, r := range rows {
		ch <- prometheus.MustNewConstMetric(teamGPUDesc, prometheus.CounterValue, r.total, r.name)
		ch <- prometheus.MustNewConstMetric(teamEvictDesc, prometheus.CounterValue, float64(r.inflicted), r.name, "inflicted")
		ch <- prometheus.MustNewConstMetric(teamEvictDesc, prometheus.CounterValue, float64(r.suffered), r.name, "suffered")
	}
}
