package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/peer"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// Shelf is the store of a node as people and programs see it: what is in it,
// what is brought into it before anybody asks, what goes. Its errors are
// *functions.StoreError. Its methods may be called concurrently.
type Shelf struct {
	node   string
	store  *store.Store
	loader *loader.Loader
	end    func() // of what the shelf opened itself
}

// ShelfOptions are how a store is opened without an agent.
type ShelfOptions struct {
	Data   string
	Budget functions.Bytes // 0: all the disk has but keepFree
	// Peers are URLs of nodes that lend blocks to who shows the token.
	Peers []string
	Token string
	Log   *slog.Logger
}

// OpenShelf is the store below a data folder with a loader of its own, and no
// agent. A server or agent may run on the same folder meanwhile. It borrows from
// other nodes, and lends nothing. The caller closes it.
func OpenShelf(o ShelfOptions) (*Shelf, error) {
	data, budget, log := o.Data, o.Budget, o.Log
	st, err := openStore(data, budget, log)
	if err != nil {
		return nil, storeError(err)
	}
	from, end := sources()
	lo := loader.Options{Store: st, Sources: from, Links: linksOf(data), Log: log}
	if len(o.Peers) > 0 {
		circle := peer.New(peer.Options{ID: "pull-" + rand.Text(), Token: o.Token, Nodes: newOthers(o.Peers).list, Log: log})
		lo.Neighbours = circle
		close := end
		end = func() { circle.Close(); close() }
	}
	l := loader.New(lo)
	seen := newHubView(data, st, from, log)
	return &Shelf{store: st, loader: l, end: func() { l.Close(); seen.sync(); end() }}, nil
}

// Close ends what is under way; what has arrived stays for the next.
func (s *Shelf) Close() { s.end() }

// linksOf is where a data folder keeps what was found out about links to sources.
func linksOf(data string) string { return filepath.Join(data, "store", "links.json") }

func openStore(data string, budget functions.Bytes, log *slog.Logger) (*store.Store, error) {
	return store.Open(store.Options{Dir: filepath.Join(data, "store"), Budget: int64(budget), KeepFree: keepFree, Log: log})
}

// Cached lists the published checkpoints, last used first.
func (s *Shelf) Cached(ctx context.Context) ([]functions.CacheEntry, error) {
	list, err := s.store.List()
	if err != nil {
		return nil, storeError(err)
	}
	out := make([]functions.CacheEntry, 0, len(list))
	for _, e := range list {
		entry := functions.CacheEntry{
			Node: s.node, Digest: e.Digest, Source: e.Source, Path: e.Path, Files: len(e.Files), Bytes: functions.Bytes(e.Bytes),
			Created: e.Created, LastUsed: e.LastUsed, InUse: e.Leased, Pinned: e.Kept,
		}
		if _, memory, known := nearness(e); known {
			entry.Memory = &memory
		}
		out = append(out, entry)
	}
	return out, nil
}

// Keep does something to one checkpoint that takes no time.
func (s *Shelf) Keep(ctx context.Context, digest string, act functions.StoreAct) error {
	var err error
	switch act {
	case functions.StoreRemove:
		err = s.store.Remove(digest)
	case functions.StorePin:
		err = s.store.Pin(digest)
	case functions.StoreUnpin:
		err = s.store.Unpin(digest)
	default:
		return &functions.StoreError{Code: string(source.BadSource), Message: fmt.Sprintf("%.20q is nothing that is done to a checkpoint", string(act))}
	}
	if e := storeError(err); e != nil {
		if e.Code == string(source.Refused) { // of a removal
			e.Code = functions.CodeInUse
		}
		return e
	}
	return nil
}

// Reread reads a checkpoint again and takes out what is not what it was. It tells that it has begun, and how it
// ended; an error is of one that never began.
func (s *Shelf) Reread(ctx context.Context, digest string, tell func(functions.StoreProgress)) error {
	e, lease, err := s.store.Acquire(digest)
	if err != nil {
		return storeError(err)
	}
	lease.Release() // the store takes its own
	p := functions.StoreProgress{Node: s.node, State: "verifying", Total: functions.Bytes(e.Bytes), Digest: e.Digest, Path: e.Path}
	tell(p)
	if err := s.store.Verify(digest); err != nil {
		tell(failed(p, err))
		return nil
	}
	p.State, p.Percent, p.Done = "ready", 100, p.Total
	tell(p)
	return nil
}

// Prefetch brings a source into the store. It tells how far it is, and how it
// ended; an error is of one that never began. When ctx ends it is called off,
// unless somebody else wants the same, and what has arrived stays.
func (s *Shelf) Prefetch(ctx context.Context, r functions.PrefetchRequest, tell func(functions.StoreProgress)) error {
	st, err := s.loader.Stage(ctx, r.Source, loader.StageOptions{Base: r.Dir, Digest: r.Digest, Files: r.Files})
	if err != nil {
		return storeError(err)
	}
	defer st.Release()
	events, stop := st.Events()
	defer stop()
	last := functions.StoreProgress{Node: s.node}
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p, ok := <-events:
			if over = !ok || p.State == loader.Ready || p.State == loader.Failed; !over {
				last = s.progress(p)
				tell(last)
			}
		}
	}
	c, err := st.Wait(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		tell(failed(last, err))
		return nil
	}
	defer c.Lease.Release()
	if r.Pin && !c.InPlace {
		if err := s.store.Pin(c.Digest); err != nil {
			tell(failed(last, err))
			return nil
		}
	}
	if r.Memory {
		intoMemory(ctx, c)
	}
	b := functions.Bytes(c.Bytes)
	tell(functions.StoreProgress{Node: s.node, State: "ready", Percent: 100, Done: b, Total: b, Resumed: last.Resumed, Digest: c.Digest, Path: c.Path, InPlace: c.InPlace, Note: last.Note})
	return nil
}

func (s *Shelf) progress(p loader.Progress) functions.StoreProgress {
	out := functions.StoreProgress{
		Node: s.node, State: string(p.State), Percent: p.Percent(), Rate: p.Rate,
		Done: functions.Bytes(p.Done), Total: functions.Bytes(p.Total), Resumed: functions.Bytes(p.Resumed), Note: p.Note,
	}
	if eta, ok := p.ETA(); ok {
		s := eta.Seconds()
		out.ETA = &s
	}
	return out
}

// Stats is what loader and store have done so far.
func (s *Shelf) Stats() functions.LoaderStats {
	l, st := s.loader.Stats(), s.store.Stats()
	out := functions.LoaderStats{
		Bytes:  make(map[string]functions.Bytes, len(l.Bytes)),
		Wasted: functions.Bytes(l.Wasted), Resumed: functions.Bytes(l.Resumed), Reused: functions.Bytes(l.Reused), Lent: functions.Bytes(l.Lent),
		Requests: l.Requests, Retries: l.Retries, Hedges: l.Hedges, Throttles: l.Throttles,
		Staged: l.Staged, Failed: l.Failed, InFlight: l.InFlight, Stagings: l.Stagings,
		Evictions: st.Evictions, EvictedBytes: functions.Bytes(st.EvictedBytes), Quarantined: st.Quarantined,
	}
	for scheme, n := range l.Bytes {
		out.Bytes[scheme] = functions.Bytes(n)
	}
	return out
}

func failed(p functions.StoreProgress, err error) functions.StoreProgress {
	p.State, p.Error, p.Path, p.ETA, p.Rate = "failed", storeError(err), "", nil, 0
	return p
}

// storeError is an error of loader or store with its stable code.
func storeError(err error) *functions.StoreError {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*functions.StoreError](err); ok {
		return e
	}
	kind := source.KindOf(err)
	out := &functions.StoreError{Code: string(kind), Message: err.Error()}
	switch {
	case kind == "":
		out.Code = string(source.Broken)
	case kind == source.Missing && strings.HasSuffix(out.Message, "is not in the store"):
		out.Code = functions.CodeNotCached
	}
	return out
}
