package ratelimit

import "time"

// ShareLimits makes the limits those of several activators, before any request: nothing
// is admitted beyond what ApplyAllotments gave. needs is called when Reports should be sent now;
// it must not block, nor call back.
func (l *Limits) ShareLimits(needs func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wantsReport = needs
	l.membership.Store(&Membership{Shared: true})
}

// Reports returns the usage reports to send; nil for none. first begins a connection: every
// bucket is reported, and none refills by itself from then on. all returns unneeded units
// as well; it is set once a second.
func (l *Limits) Reports(first, all bool, now time.Time) *UsageReports {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := *l.memberOf()
	t := was
	if first {
		t.Connected = true
	}
	out := &UsageReports{Share: t.Share}
	for team, a := range l.all() {
		a.reports(team, &was, &t, first, all, now, out)
	}
	if first {
		l.membership.Store(&t)
	}
	if !first && !all && len(out.List) == 0 {
		return nil
	}
	return out
}

func (a *account) reports(team string, was, m *Membership, first, all bool, now time.Time, out *UsageReports) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.buckets {
		b := &a.buckets[k]
		if first {
			b.Free(was, now) // what came without a link
		}
		if c, any := b.Report(team, m, first, all, now); any {
			out.List = append(out.List, c)
		}
	}
}

// ApplyAllotments applies the coordinator's message.
func (l *Limits) ApplyAllotments(g Allotments, now time.Time) {
	l.mu.Lock()
	m := *l.memberOf()
	if m.Share != g.Share {
		m.Share = g.Share
		l.membership.Store(&m)
	}
	l.mu.Unlock()
	for i := range g.List {
		one := &g.List[i]
		if one.Kind >= kindCount {
			continue
		}
		a := l.account(one.Team)
		a.mu.Lock()
		a.allotments++
		a.buckets[one.Kind].Apply(one, now)
		a.requestAllotment(&a.buckets[one.Kind])
		a.mu.Unlock()
	}
}

// OnDisconnect records that the connection to the coordinator has ended.
func (l *Limits) OnDisconnect(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := *l.memberOf()
	if !t.Connected {
		return
	}
	t.Connected, t.Since = false, now
	l.membership.Store(&t)
	for _, a := range l.all() {
		a.mu.Lock()
		a.allotments++ // waiters must not go on waiting
		for k := range a.buckets {
			a.buckets[k].OnDisconnect(&t, now)
		}
		a.mu.Unlock()
	}
}
