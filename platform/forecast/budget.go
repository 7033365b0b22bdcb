package forecast

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Budgets bound the GPU time of starts ahead of demand, per team and for all teams
// together. Spent time is restored linearly over an hour.
type Budgets struct {
	perTeam, all time.Duration
	teams        map[string]*budget
	total        budget
}

type budget struct {
	spent time.Duration
	at    placement.Instant
}

func (b *budget) left(now placement.Instant, size time.Duration) time.Duration {
	if b.at > 0 && now > b.at {
		b.spent -= time.Duration(float64(now-b.at) / float64(time.Hour) * float64(size))
	}
	b.spent, b.at = max(b.spent, 0), now
	return size - b.spent
}

// NewBudgets grants each team perTeam of GPU time an hour, and all teams together
// teams times as much.
func NewBudgets(perTeam time.Duration, teams int) *Budgets {
	return &Budgets{perTeam: perTeam, all: perTeam * time.Duration(teams), teams: map[string]*budget{}}
}

// Check returns a *functions.PrewarmBudgetError if asked exceeds what is left.
func (b *Budgets) Check(team string, asked time.Duration, now placement.Instant) error {
	own := b.teams[team]
	if own == nil {
		own = &budget{}
		b.teams[team] = own
	}
	for _, x := range []struct {
		*budget
		size time.Duration
		team string
	}{{own, b.perTeam, team}, {&b.total, b.all, ""}} {
		if left := x.left(now, x.size); asked > left {
			e := &functions.PrewarmBudgetError{Team: x.team, Requested: asked, Left: left}
			if asked <= x.size {
				e.In = time.Duration(float64(asked-left) / float64(x.size) * float64(time.Hour))
			}
			return e
		}
	}
	return nil
}

// Reserve subtracts d from the budget of a team and from that of all teams; a negative
// d is given back to both.
func (b *Budgets) Reserve(team string, d time.Duration) {
	b.total.spent = max(b.total.spent+d, 0)
	if t := b.teams[team]; t != nil {
		t.spent = max(t.spent+d, 0)
	}
}

// Left is the GPU time that a team may still reserve.
func (b *Budgets) Left(team string, now placement.Instant) time.Duration {
	left := b.perTeam
	if t := b.teams[team]; t != nil {
		left = t.left(now, b.perTeam)
	}
	return max(min(left, b.total.left(now, b.all)), 0)
}
