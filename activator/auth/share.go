package auth

import (
	"time"

	"github.com/thaw-dev/thaw/activator/ratelimit"
)

// Share says, before anything is admitted, that limits are of several activators:
// nothing is admitted beyond what Grants gave. needs is called when Claims has
// something that should be told now; it must not block, nor call back.
func (l *Limits) Share(needs func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.needs = needs
	l.tie.Store(&ratelimit.Tie{Bank: true})
}

// Claims are what the bank is to be told: nil where that is nothing. First begins a
// connection: all is said, and nothing comes by itself from then on. All gives back
// what is not needed as well; it is to be asked for once a second.
func (l *Limits) Claims(first, all bool, now time.Time) *ratelimit.Claims {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := *l.tied()
	t := was
	if first {
		t.Linked = true
	}
	out := &ratelimit.Claims{Part: t.Part}
	if m := l.accounts.Load(); m != nil {
		for team, a := range *m {
			a.claims(team, &was, &t, first, all, now, out)
		}
	}
	if first {
		l.tie.Store(&t)
	}
	if !first && !all && len(out.List) == 0 {
		return nil
	}
	return out
}

func (a *account) claims(team string, was, t *ratelimit.Tie, first, all bool, now time.Time, out *ratelimit.Claims) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.purses {
		p := &a.purses[k]
		if first {
			p.Free(was, now) // what came without a link
		}
		if c, some := p.Claim(team, t, first, all, now); some {
			out.List = append(out.List, c)
		}
	}
}

// Granted takes in what the bank says.
func (l *Limits) Granted(g ratelimit.Grants, now time.Time) {
	l.mu.Lock()
	t := *l.tied()
	if t.Part != g.Part {
		t.Part = g.Part
		l.tie.Store(&t)
	}
	l.mu.Unlock()
	for i := range g.List {
		one := &g.List[i]
		if one.Kind >= ratelimit.Kinds {
			continue
		}
		a := l.account(one.Team)
		a.mu.Lock()
		a.grants++
		a.purses[one.Kind].Grant(one, now)
		a.knock(&a.purses[one.Kind])
		a.mu.Unlock()
	}
}

// Unlinked says that the link to the bank has ended.
func (l *Limits) Unlinked(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := *l.tied()
	if !t.Linked {
		return
	}
	t.Linked, t.Since = false, now
	l.tie.Store(&t)
	if m := l.accounts.Load(); m != nil {
		for _, a := range *m {
			a.mu.Lock()
			a.grants++ // who waits for one is not to
			for k := range a.purses {
				a.purses[k].Unlinked(&t, now)
			}
			a.mu.Unlock()
		}
	}
}
