package link

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/route"
	"github.com/thaw-dev/thaw/activator/share"
	"github.com/thaw-dev/thaw/functions"
)

// Feed is an activator as the controller feeds and hears it: activator.Activator.
type Feed interface {
	Publish(fs ...route.Function)
	Remove(names ...functions.Name)
	Cut(agent string)
	Demand(all bool, yield func(activator.Demand) bool)
	DemandOf(name functions.Name) (activator.Demand, bool)
	InFlightOf(name functions.Name, replica string) int
}

// Purses are what an activator has of the limits of teams: who.Limits.
type Purses interface {
	Claims(first, all bool, now time.Time) *share.Claims
	Granted(g share.Grants, now time.Time)
	Unlinked(now time.Time)
}

// ActivatorOptions of an Activator. Addr, Token, ID and, before Run, what Attach
// is given must be set.
type ActivatorOptions struct {
	Addr    string // HOST:PORT of the controller; all addresses of HOST are tried
	Token   string
	ID      string // of this activator: the name of its pod
	Version string
	Table   func(*Table) // takes the newest table over before it returns; may be nil
	Keys    func(Keys)   // and the keys; may be nil
	Purses  Purses       // may be nil: there are no limits
	Log     *slog.Logger // nil is silence

	TLS    func() (*tls.Config, error) // as in ClientOptions
	Reread func() (string, error)      // as in ClientOptions

	Dial   func(ctx context.Context, addr string) (net.Conn, error) // as in ClientOptions
	Lookup func(ctx context.Context, host string) ([]string, error) // as in ClientOptions
}

// Activator is an activator's end of its link: it feeds the data path what the
// controller says, and the controller what is asked of the data path. It is the
// activator.Waker there. Without a link the pictures stay as they were told last.
type Activator struct {
	o      ActivatorOptions
	client *Client
	feed   Feed // set by Attach, before Run

	heard chan struct{} // closed when all pictures have been told once
	told  atomic.Bool

	mu      sync.Mutex
	seq     uint64 // Seq of the pictures that are published
	fns     map[functions.Name]*fed
	removed map[functions.Name]*fed // taken out, with requests under way still
}

// fed is what is known of a function that was published.
type fed struct {
	now  *route.Function // that is published; nil: not yet, or no more
	reps []string        // replicas that may have requests from us
}

// NewActivator makes one; it starts nothing.
func NewActivator(o ActivatorOptions) *Activator {
	a := &Activator{o: o, heard: make(chan struct{}), fns: map[functions.Name]*fed{}, removed: map[functions.Name]*fed{}}
	a.client = NewClient(ClientOptions{
		Addr: o.Addr, Token: o.Token, Hello: Hello{Kind: KindActivator, ID: o.ID, Version: o.Version}, Log: o.Log,
		TLS: o.TLS, Reread: o.Reread, Dial: o.Dial, Lookup: o.Lookup,
	})
	a.client.hears, a.client.demand = a.hear, a.demand
	if o.Purses != nil {
		a.client.ended = func() { o.Purses.Unlinked(time.Now()) }
	}
	return a
}

// Attach tells which data path is fed, which needs the Waker to be made.
func (a *Activator) Attach(feed Feed) { a.feed = feed }

// Run keeps the link until ctx ends.
func (a *Activator) Run(ctx context.Context) error { return a.client.Run(ctx) }

// Heard is closed once the controller has told which functions there are.
func (a *Activator) Heard() <-chan struct{} { return a.heard }

// Connected reports whether there is a link now.
func (a *Activator) Connected() bool { return a.client.Connected() }

// Leader is the HOST:PORT of the controller at the other end, "" while there is
// none.
func (a *Activator) Leader() string { return a.client.Leader() }

// Stirred says that the demand has changed (activator.Options.Stirred).
func (a *Activator) Stirred() { knock(a.client.stir) }

// Claim says that there is a claim to be made now (who.Limits.Share).
func (a *Activator) Claim() { knock(a.client.ring) }

// Wake asks for a first replica. Which cold start that begins is told by the
// pictures that follow.
func (a *Activator) Wake(name functions.Name, team string) string {
	a.client.Send(Up{Wakes: []Wake{{Name: name, Team: team}}})
	return ""
}

// Nudge says that demand changed in a way worth a look.
func (a *Activator) Nudge(name functions.Name) {
	a.client.Send(Up{Nudges: []functions.Name{name}})
}

// Ask says that a replica broke on us.
func (a *Activator) Ask(name functions.Name, replica, problem string) {
	a.client.Send(Up{Asks: []Ask{{Name: name, Replica: replica, Problem: problem}}})
}

// FirstToken says how long the first request of a cold start took from READY to
// the engine's first byte (activator.Options.FirstToken).
func (a *Activator) FirstToken(name functions.Name, coldStart string, took time.Duration) {
	a.client.Send(Up{Firsts: []First{{Name: name, ColdStart: coldStart, Seconds: took.Seconds()}}})
}

// hear carries out what the controller says. One message at a time.
func (a *Activator) hear(d Down, seq uint64) {
	gone := a.before(&d)
	if d.Keys != nil && a.o.Keys != nil {
		a.o.Keys(*d.Keys)
	}
	if d.Shares != nil && a.o.Purses != nil {
		a.o.Purses.Granted(*d.Shares, time.Now())
	}
	if len(gone) > 0 {
		a.feed.Remove(gone...)
	}
	if len(d.Functions) > 0 {
		a.feed.Publish(d.Functions...)
	}
	a.after(&d, gone, seq)
	for _, agent := range d.Cut { // what is cut looks for another replica in the new pictures
		a.feed.Cut(agent)
	}
	if d.Table != nil {
		if a.o.Table != nil {
			a.o.Table(d.Table)
		}
		a.client.Send(Up{Applied: d.Table.Version})
	}
	if len(d.Functions)+len(gone) > 0 {
		knock(a.client.ring) // that it was heard: a replica that has left may be ended then
	}
	if d.Whole && !a.told.Swap(true) {
		close(a.heard)
	}
}

// before notes which replicas may have requests from now on, and tells which
// functions are to be taken out.
func (a *Activator) before(d *Down) (gone []functions.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	named := map[functions.Name]bool{}
	for i := range d.Functions {
		f := &d.Functions[i]
		named[f.Name] = true
		n := a.fns[f.Name]
		if n == nil {
			if n = a.removed[f.Name]; n == nil {
				n = &fed{}
			}
			delete(a.removed, f.Name)
			a.fns[f.Name] = n
		}
		for j := range f.Replicas {
			n.add(f.Replicas[j].ID)
		}
		for j := range f.Coming { // what was sent there ahead is in flight as soon as it answers
			n.add(f.Coming[j].ID)
		}
	}
	if !d.Whole {
		for _, name := range d.Removed {
			if a.fns[name] != nil {
				gone = append(gone, name)
			}
		}
		return gone
	}
	for name := range a.fns {
		if !named[name] {
			gone = append(gone, name)
		}
	}
	return gone
}

// after notes what is published now: replicas that are not get no new requests.
func (a *Activator) after(d *Down, gone []functions.Name, seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range d.Functions {
		a.fns[d.Functions[i].Name].now = &d.Functions[i]
	}
	for _, name := range gone {
		n := a.fns[name]
		n.now = nil
		delete(a.fns, name)
		a.removed[name] = n
	}
	a.seq = seq
}

func (n *fed) add(id string) {
	for _, x := range n.reps {
		if x == id {
			return
		}
	}
	n.reps = append(n.reps, id)
}

// demand adds to u what is asked of the functions, of those of which that has
// changed, or of all.
func (a *Activator) demand(all, first bool, u *Up) (whole bool, heard uint64) {
	a.mu.Lock()
	if first {
		a.seq = 0 // it was another hub's, maybe
	}
	heard = a.seq
	a.mu.Unlock()
	if a.o.Purses != nil {
		u.Shares = a.o.Purses.Claims(first, all, time.Now())
	}
	a.feed.Demand(all, func(d activator.Demand) bool {
		a.mu.Lock()
		flights := a.flights(a.fns[d.Name], d.Name)
		a.mu.Unlock()
		u.Demand = append(u.Demand, Demand{Demand: d, InFlight: flights})
		return true
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, n := range a.removed {
		flights := a.flights(n, name)
		u.Demand = append(u.Demand, Demand{Demand: activator.Demand{Name: name}, InFlight: flights})
		if len(flights) == 0 {
			delete(a.removed, name)
		}
	}
	if first {
		a.remember(u)
	}
	return all, heard
}

// remember adds what a controller that has just begun must know, or a cold one
// would be idle since ever and a wake forgotten: when each function was used last,
// and who waits for a first replica; under mu.
func (a *Activator) remember(u *Up) {
	busy := make(map[functions.Name]bool, len(u.Demand))
	for _, d := range u.Demand {
		busy[d.Name] = true
		n := a.fns[d.Name]
		if d.Queued == 0 || n == nil || n.now == nil || len(n.now.Replicas) > 0 {
			continue
		}
		for team := range d.Teams {
			u.Wakes = append(u.Wakes, Wake{Name: d.Name, Team: team})
			break
		}
	}
	for name := range a.fns {
		if busy[name] {
			continue
		}
		if d, ok := a.feed.DemandOf(name); ok && !d.LastEnd.IsZero() {
			u.Demand = append(u.Demand, Demand{Demand: d})
		}
	}
}

// flights are the requests in flight at each of a function's replicas that has
// some. A replica that is published no more and has none is forgotten; under mu.
func (a *Activator) flights(n *fed, name functions.Name) (out map[string]int) {
	if n == nil {
		return nil
	}
	kept := n.reps[:0]
	for _, id := range n.reps {
		k := a.feed.InFlightOf(name, id)
		if k > 0 {
			if out == nil {
				out = map[string]int{}
			}
			out[id] = k
		}
		if k > 0 || n.now != nil && (n.now.Has(id) || n.now.Comes(id)) {
			kept = append(kept, id)
		}
	}
	n.reps = kept
	return out
}
