package nodestore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/loader/pagecache"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/loader/source/huggingface"
	"github.com/thaw-dev/thaw/loader/source/s3"
	"github.com/thaw-dev/thaw/loader/source/web"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// Store is a node's store: it lists, prefetches, verifies and removes checkpoints. Its
// errors are *functions.StoreError. Its methods may be called concurrently.
type Store struct {
	node         string
	store        *store.Store
	loader       *loader.Loader
	sources      map[string]loader.Source
	closeSources func()    // closes the sources' connections
	swarm        *p2p.Node // nil without peering, as are peers and listener
	peers        *peerList
	listener     net.Listener
	log          *slog.Logger

	mu       sync.Mutex // guards the fields below
	rate     float64    // bytes per second between the last two measurements
	loaded   functions.Bytes
	measured time.Time
	use      functions.StoreUse
	cached   []functions.CachedModel
}

// Options configure a Store.
type Options struct {
	Node   string          // name of the node; "": a visitor, which serves no blocks
	Data   string          // data folder; the store is below it
	Budget functions.Bytes // bytes; 0: the whole disk but keepFree
	// KeepPercent of the disk stays free, as far as evicting unused checkpoints goes.
	KeepPercent int
	// Peering exchanges blocks with other nodes; nil: none.
	Peering *Peering
	// Copies has folders of this machine copied into the store like any other source,
	// instead of used in place, so that only the store must be mounted.
	Copies bool
	// Private closes the store to other users; see store.Options.
	Private bool
	Log     *slog.Logger // nil discards
}

// Open opens the store below a data folder, with its own loader. Other processes may have
// the same folder open. It creates folders and starts nothing; the caller closes it.
func Open(o Options) (*Store, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	st, err := store.Open(store.Options{Dir: filepath.Join(o.Data, "store"), Budget: int64(o.Budget), KeepFree: keepFree,
		FreeShare: float64(o.KeepPercent) / 100, Private: o.Private, Log: o.Log})
	if err != nil {
		return nil, storeError(err)
	}
	from, end := OpenSources()
	if o.Copies {
		from["file"] = copiedSource{from["file"]}
	}
	s := &Store{node: o.Node, store: st, sources: from, closeSources: end, log: o.Log}
	lo := loader.Options{Store: st, Sources: from, Links: filepath.Join(o.Data, "store", "links.json"), Log: o.Log}
	if p := o.Peering; p != nil {
		id := cmp.Or(o.Node, p2p.VisitorPrefix+rand.Text())
		s.listener = p.Listener
		s.peers = &peerList{fixed: functions.ConvertAll(p.Nodes, func(u string) p2p.Peer { return p2p.Peer{URL: u} })}
		s.swarm = p2p.New(p2p.Options{ID: id, URL: p.URL, TLS: p.TLS, Nodes: s.peers.nodes, Folders: p.folders(), Log: o.Log})
		from[loader.PeerScheme] = s.swarm.Source()
		lo.Peers = s.swarm
	}
	s.loader = loader.New(lo)
	return s, nil
}

// copiedSource is a source of folders that are copied into the store, not used in place.
type copiedSource struct{ loader.Source }

// keepFree is the disk space in bytes that is left for logs and everything else.
const keepFree = 256 << 20

// Run serves blocks to other nodes, with peering, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	if s.listener != nil {
		// If this fails, other nodes use their sources; this node serves as before.
		if err := s.swarm.Serve(ctx, s.listener, s.loader); err != nil {
			s.log.Error("serving blocks to other nodes has failed", "error", err)
		}
	}
	<-ctx.Done()
	return nil
}

// Close stops running stagings; their bytes stay on the disk for the next ones.
func (s *Store) Close() {
	s.loader.Close()
	if s.swarm != nil {
		s.swarm.Close()
	}
	s.closeSources()
}

func (s *Store) Checkpoints() *store.Store { return s.store }

func (s *Store) Loader() *loader.Loader { return s.loader }

func (s *Store) Sources() map[string]loader.Source { return s.sources }

// SetPeers replaces the other nodes that were discovered.
func (s *Store) SetPeers(list []functions.Peer) {
	if s.peers != nil {
		s.peers.discovered.Store(new(functions.ConvertAll(list, func(p functions.Peer) p2p.Peer { return p2p.Peer{ID: p.ID, URL: p.URL} })))
	}
}

// Refresh lists the store for Usage, which blocks for as long as the listing takes.
func (s *Store) Refresh() error {
	var use functions.StoreUse
	var cached []functions.CachedModel
	used, budget, _ := s.store.Usage()
	use.Used, use.Bytes = functions.Bytes(used), functions.Bytes(budget)
	entries, err := s.store.List()
	if err != nil {
		return storeError(err)
	}
	for _, e := range entries {
		t, memory, _ := tierOf(e)
		cached = append(cached,
			functions.CachedModel{Source: e.Source, Digest: e.Digest, Tier: t, Bytes: functions.Bytes(e.Bytes), Memory: memory})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use, s.cached = use, cached
	return nil
}

// MeasureRate measures the download rate since its last call.
func (s *Store) MeasureRate(now time.Time) {
	var sum functions.Bytes
	for _, b := range s.Stats().Bytes {
		sum += b
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := now.Sub(s.measured).Seconds(); !s.measured.IsZero() && d > 0 {
		s.rate = float64(sum-s.loaded) / d
	}
	s.loaded, s.measured = sum, now
}

// Usage returns the results of the last Refresh with the loader's present totals. It does
// not block.
func (s *Store) Usage() (functions.StoreUse, []functions.CachedModel) {
	stats := s.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.Rate = s.rate
	use := s.use
	use.Loader = &stats
	return use, s.cached
}

// Cached lists the published checkpoints, most recently used first, and then the unfinished
// downloads.
func (s *Store) Cached(ctx context.Context) ([]functions.CacheEntry, error) {
	list, err := s.store.List()
	if err != nil {
		return nil, storeError(err)
	}
	out := make([]functions.CacheEntry, 0, len(list))
	for _, e := range list {
		entry := functions.CacheEntry{
			Node: s.node, Digest: e.Digest, Source: e.Source, Path: e.Path, Files: len(e.Files), Bytes: functions.Bytes(e.Bytes),
			Created: e.Created, LastUsed: e.LastUsed, InUse: e.Leased, Pinned: e.PinnedByUser,
		}
		if _, memory, known := tierOf(e); known {
			entry.Memory = &memory
		}
		out = append(out, entry)
	}
	parts, err := s.store.Unfinished()
	for _, u := range parts {
		out = append(out, functions.CacheEntry{Node: s.node, Digest: functions.PartName(u.Key), Source: u.Location, Path: u.Path,
			Files: u.Files, Bytes: functions.Bytes(u.Bytes), Created: u.LastUsed, LastUsed: u.LastUsed})
	}
	if err != nil {
		return nil, storeError(err)
	}
	return out, nil
}

func (s *Store) ChangeCheckpoint(ctx context.Context, digest string, act functions.StoreAction) error {
	var err error
	key, unfinished := functions.CutPart(digest)
	switch act {
	case functions.StoreRemove:
		if unfinished {
			err = s.store.RemoveUnfinished(key)
		} else {
			err = s.store.Remove(digest)
		}
	case functions.StorePin, functions.StoreUnpin:
		err = s.store.SetPin(digest, act == functions.StorePin)
	default:
		return &functions.StoreError{Code: string(source.BadSource),
			Message: fmt.Sprintf("%.20q is nothing that is done to a checkpoint", string(act))}
	}
	if e := storeError(err); e != nil {
		if e.Code == string(source.Refused) { // by a removal
			e.Code = functions.CodeInUse
		}
		return e
	}
	return nil
}

// VerifyCheckpoint verifies a checkpoint by reading it again, and removes changed files. It reports
// the start and the end to tell; it returns an error only if it did not start.
func (s *Store) VerifyCheckpoint(ctx context.Context, digest string, report func(functions.StoreProgress)) error {
	e, lease, err := s.store.Acquire(digest)
	if err != nil {
		return storeError(err)
	}
	lease.Release() // Verify acquires its own lease
	p := functions.StoreProgress{Node: s.node, State: "verifying", Total: functions.Bytes(e.Bytes), Digest: e.Digest, Path: e.Path}
	report(p)
	if err := s.store.Verify(ctx, digest); err != nil {
		report(failedProgress(p, err))
		return nil
	}
	p.State, p.Percent, p.Done = "ready", 100, p.Total
	report(p)
	return nil
}

// Prefetch downloads a source into the store, and reports progress and the end to tell. It
// returns an error only if it did not start. When ctx ends the staging is cancelled unless
// another caller shares it; the bytes that have arrived stay.
func (s *Store) Prefetch(ctx context.Context, r functions.PrefetchRequest, report func(functions.StoreProgress)) error {
	o := loader.StageOptions{Base: r.Dir, Digest: r.Digest, Files: r.Files}
	if r.Low {
		o.Priority = loader.Low
	}
	st, err := s.loader.Stage(ctx, r.Source, o)
	if err != nil {
		return storeError(err)
	}
	defer st.Release()
	events, stop := st.Events()
	defer stop()
	last := functions.StoreProgress{Node: s.node}
	for done := false; !done; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p, ok := <-events:
			if done = !ok || p.State == loader.Ready || p.State == loader.Failed; !done {
				last = s.progress(p)
				report(last)
			} else if ok {
				last.Note = s.progress(p).Note
			}
		}
	}
	c, err := st.Wait(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		report(failedProgress(last, err))
		return nil
	}
	defer c.Lease.Release()
	if r.Pin && !c.InPlace {
		if err := s.store.SetPin(c.Digest, true); err != nil {
			report(failedProgress(last, err))
			return nil
		}
	}
	if r.Memory {
		ReadIntoMemory(ctx, c)
	}
	b := functions.Bytes(c.Bytes)
	report(functions.StoreProgress{Node: s.node, State: "ready", Percent: 100, Done: b, Total: b, Resumed: last.Resumed, Digest: c.Digest,
		Path: c.Path, InPlace: c.InPlace, Note: last.Note})
	return nil
}

func (s *Store) progress(p loader.Progress) functions.StoreProgress {
	out := functions.StoreProgress{
		Node: s.node, State: string(p.State), Percent: p.Percent(), Rate: p.Rate,
		Done: functions.Bytes(p.Done), Total: functions.Bytes(p.Total), Resumed: functions.Bytes(p.Resumed), Note: cmp.Or(p.Problem, p.Note),
	}
	if eta, ok := p.ETA(); ok {
		out.ETA = new(eta.Seconds())
	}
	return out
}

func (s *Store) Stats() functions.LoaderStats {
	out, st := s.loader.Stats(), s.store.Stats()
	out.Evictions, out.EvictedBytes, out.Quarantined = st.Evictions, functions.Bytes(st.EvictedBytes), st.Quarantined
	return out
}

func failedProgress(p functions.StoreProgress, err error) functions.StoreProgress {
	p.State, p.Error, p.Path, p.ETA, p.Rate = "failed", storeError(err), "", nil, 0
	return p
}

// storeError converts an error of loader or store into one with its stable code.
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

// sourceVariable returns an environment variable without what is left around values: the line
// end of a Secret that was made of a file, and the quotes that an --env-file keeps.
func sourceVariable(name string) string {
	v := strings.TrimSpace(os.Getenv(name))
	if n := len(v); n > 1 && (v[0] == '"' || v[0] == '\'') && v[n-1] == v[0] {
		v = v[1 : n-1]
	}
	return v
}

// OpenSources returns all sources that a node can stage from, by scheme; end closes their
// connections.
func OpenSources() (all map[string]loader.Source, end func()) {
	blobs, buckets := azure.New(azure.Options{Getenv: sourceVariable}), s3.New(s3.Options{Getenv: sourceVariable})
	objects, pages := gcs.New(gcs.Options{Getenv: sourceVariable}), web.New(web.Options{Getenv: sourceVariable})
	repositories := huggingface.New(huggingface.Options{Getenv: sourceVariable})
	all = map[string]loader.Source{"file": dir.Source{}, "az": blobs, "s3": buckets, "gs": objects, "hf": repositories, "https": pages}
	return all, func() {
		blobs.Close()
		buckets.Close()
		objects.Close()
		repositories.Close()
		pages.Close()
	}
}

// inMemoryShare is the share of a checkpoint's bytes in the page cache from which on it
// counts as in memory: an engine then maps it without waiting for the disk.
const inMemoryShare = 0.9

func cachedFile(dir, name string, size int64) pagecache.File {
	return pagecache.File{Path: filepath.Join(dir, filepath.FromSlash(name)), Size: size}
}

// tierOf returns a checkpoint's tier and its bytes in memory; known is false if the system
// does not report them.
func tierOf(e store.Entry) (t functions.Tier, memory functions.Bytes, known bool) {
	files := functions.ConvertAll(e.Files, func(f store.File) pagecache.File { return cachedFile(e.Path, f.Name, f.Size) })
	have, known := pagecache.Resident(files)
	if known && e.Bytes > 0 && float64(have) >= inMemoryShare*float64(e.Bytes) {
		return functions.TierDRAM, functions.Bytes(have), true
	}
	return functions.TierNVMe, functions.Bytes(have), known
}

// ReadIntoMemory has the kernel read a checkpoint into the page cache, as far as memory
// is free.
func ReadIntoMemory(ctx context.Context, c *loader.Checkpoint) {
	limit := pagecache.SpareMemory()
	// Pages read by this process count towards its control group.
	if group := hostinfo.GroupLimit(); group > 0 {
		limit = min(limit, group/2)
	}
	files := functions.ConvertAll(c.Files, func(f loader.File) pagecache.File { return cachedFile(c.Path, f.Name, f.Size) })
	pagecache.ReadAhead(ctx, files, limit)
}

// Machine returns an identity of this host as file systems see it: two processes with the
// same identity can open the same paths. The boot id distinguishes hosts of one name, the
// name distinguishes containers of one host.
func Machine() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if boot := hostinfo.BootID(); boot != "" {
		return host + "/" + boot
	}
	return host
}

// autoMemory is the share of the machine's memory for engines, if no size is configured.
const autoMemory = 0.8

// Memory is the host memory that all replicas may reserve together: 80 % of the smaller of
// the machine's total and this process's cgroup limit.
func Memory() (functions.Bytes, error) {
	m, err := hostinfo.ReadMemory()
	if err != nil {
		return 0, fmt.Errorf("the machine's memory is not known (--memory sets it): %w", err)
	}
	total := m.Total
	if limit := hostinfo.GroupLimit(); limit > 0 && limit < total {
		total = limit
	}
	return functions.Bytes(autoMemory * float64(total)), nil
}
