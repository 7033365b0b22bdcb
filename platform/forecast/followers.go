package forecast

import "time"

const (
	maxRecent      = 16
	maxFollowers   = 4
	followWithin   = 10 * time.Minute
	hintLasts      = 5 * time.Minute // how long a predicted follower is expected
	minFollowShare = 0.5             // share of the leader's uses for a habit
	minFollowCount = 4               // observations for a habit
	manyStarts     = 256             // uses after which all counts are halved
)

// follower is a function that was used soon after its leader.
type follower struct {
	who *functionUsage
	n   uint16
	lag time.Duration // moving average
	in  uint32        // number of the leader's use that it was counted in last
}

// learnFollowers counts p as a follower of recently used functions, and predicts the
// uses of its own followers. Only functions of one team are related, so that no team
// can observe another.
func (h *History) learnFollowers(p *functionUsage, at time.Time) {
	was := len(h.recent) - 1
	for i, a := range h.recent {
		if a == p {
			was = i
		}
		if a == nil || a == p || a.name.Team != p.name.Team {
			continue
		}
		if lag := at.Sub(a.begin); lag >= 0 && lag <= followWithin {
			a.recordFollower(p, lag)
		}
	}
	copy(h.recent[1:was+1], h.recent[:was])
	h.recent[0] = p
	if p.starts++; p.starts >= manyStarts {
		p.starts /= 2
		for i := range p.followedBy {
			p.followedBy[i].n /= 2
		}
	}
	for i := range p.followedBy {
		f := &p.followedBy[i]
		if share := p.share(f); share > 0 && !f.who.using && !f.who.end.IsZero() {
			f.who.hint, f.who.hintShare = at.Add(f.lag), share
			h.queueForPlan(f.who)
		}
	}
}

// share is the part of u's uses that f followed, 0 if that is not a habit.
func (u *functionUsage) share(f *follower) float64 {
	if f.who == nil || f.n < minFollowCount {
		return 0
	}
	if s := float64(f.n) / float64(max(u.starts, f.n)); s >= minFollowShare {
		return s
	}
	return 0
}

// recordFollower counts by as a follower of u, once for each use of u.
func (u *functionUsage) recordFollower(by *functionUsage, lag time.Duration) {
	least := 0
	for i := range u.followedBy {
		f := &u.followedBy[i]
		if f.who == by {
			if f.in != u.useCount {
				f.in = u.useCount
				f.n++
				f.lag += (lag - f.lag) / 4
			}
			return
		}
		if f.n < u.followedBy[least].n {
			least = i
		}
	}
	// The new follower replaces the rarest, unless that was seen more than once.
	if f := &u.followedBy[least]; f.who == nil || f.n <= 1 {
		*f = follower{who: by, n: 1, lag: lag, in: u.useCount}
	} else {
		f.n--
	}
}
