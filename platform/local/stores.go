package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

var _, _ functions.Store = (*nodestore.Store)(nil), (*agent.Client)(nil)

// stores returns the stores of the named node, or of all nodes that answer, by node id.
func (l *Local) stores(node string) (map[string]functions.Store, error) {
	out := map[string]functions.Store{}
	lost := map[string]bool{}
	for _, n := range l.Nodes() {
		lost[n.ID] = n.Lost
	}
	if node == "" || node == l.node.ID() {
		out[l.node.ID()] = l.node.Store()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, c := range l.remote {
		if node == id || node == "" && !lost[id] {
			out[id] = c.Client
		}
	}
	if len(out) == 0 {
		return nil, &functions.StoreError{Code: functions.CodeNoNode, Message: fmt.Sprintf("there is no node %.80q", node)}
	}
	return out, nil
}

// Cached lists the checkpoints of one node, or of all (""). silent lists nodes that did not
// answer.
func (l *Local) Cached(ctx context.Context, node string) (list []functions.CacheEntry, silent []string, err error) {
	all, err := l.stores(node)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	err = forEachStore(all, func(id string, s functions.Store) error {
		got, err := s.Cached(ctx)
		mu.Lock()
		defer mu.Unlock()
		if e, ok := errors.AsType[*functions.StoreError](err); ok && e.Code == functions.CodeUnreachable && node == "" {
			silent = append(silent, id)
			return nil
		}
		for i := range got {
			got[i].Node = id
		}
		list = append(list, got...)
		return err
	})
	slices.SortFunc(list, func(a, b functions.CacheEntry) int {
		return cmp.Or(b.LastUsed.Compare(a.LastUsed), strings.Compare(a.Node+a.Digest, b.Node+b.Digest))
	})
	slices.Sort(silent)
	return list, silent, err
}

// forEachStore calls do for all stores at once and joins the errors.
func forEachStore(all map[string]functions.Store, do func(id string, s functions.Store) error) error {
	errs := make(chan error, len(all))
	for id, s := range all {
		go func() { errs <- do(id, s) }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (l *Local) storesWith(ctx context.Context, node, digest string) (map[string]functions.Store, error) {
	all, err := l.stores(node)
	if err != nil {
		return nil, err
	}
	list, _, err := l.Cached(ctx, node)
	if err != nil {
		return nil, err
	}
	out := map[string]functions.Store{}
	for _, e := range list {
		if e.Digest == digest && all[e.Node] != nil {
			out[e.Node] = all[e.Node]
		}
	}
	if len(out) == 0 {
		nodes := "no node has"
		if node != "" {
			nodes = node + " has not"
		}
		return nil, &functions.StoreError{Code: functions.CodeNotCached, Message: fmt.Sprintf("%s the checkpoint %s", nodes, digest)}
	}
	return out, nil
}

// ChangeCheckpoint removes, pins or unpins a checkpoint on the named node, or on all that have it
// (""), and returns the nodes on which it did.
func (l *Local) ChangeCheckpoint(ctx context.Context, node, digest string, act functions.StoreAction) (nodes []string, err error) {
	on, err := l.storesWith(ctx, node, digest)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	err = forEachStore(on, func(id string, s functions.Store) error {
		if err := s.ChangeCheckpoint(ctx, digest, act); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, id)
		return nil
	})
	slices.Sort(nodes)
	return nodes, err
}

// VerifyCheckpoint verifies a checkpoint on the named node, or on all that have it, one after the
// other: they may share a disk.
func (l *Local) VerifyCheckpoint(ctx context.Context, node, digest string, report func(functions.StoreProgress)) error {
	on, err := l.storesWith(ctx, node, digest)
	if err != nil {
		return err
	}
	for id, s := range on {
		err := s.VerifyCheckpoint(ctx, digest, func(p functions.StoreProgress) { p.Node = id; report(p) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Prefetch stages a source on the named node, or on the one with the most free space in
// its store.
func (l *Local) Prefetch(ctx context.Context, node string, r functions.PrefetchRequest, report func(functions.StoreProgress)) error {
	if node == "" {
		node = l.nodeWithMostSpace()
	}
	all, err := l.stores(node)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if c := l.remote[node]; c != nil && c.shares {
		r.Dir = loader.PeerLocation(l.node.ID(), cmp.Or(r.Dir, "/"))
	}
	l.mu.Unlock()
	return all[node].Prefetch(ctx, r, func(p functions.StoreProgress) { p.Node = node; report(p) })
}

// WeightsChanged reports whether a start of a model would load other weights than these, or
// ones that are not known to be the same: its folder has changed, or a node holds another
// checkpoint of its source.
func (l *Local) WeightsChanged(m *functions.Model, weights string) bool {
	return weightsChanged(m, weights, l.Nodes)
}

func weightsChanged(m *functions.Model, weights string, nodes func() []functions.Node) bool {
	scheme, at, err := loader.Locate(m.Spec.Source, m.Dir)
	switch {
	case m.Spec.Source == "":
		return false
	case err != nil || weights == "":
		return true
	case scheme == "file":
		return agent.FolderID(context.Background(), m.Spec.Source, m.Dir) != weights
	}
	other := func(c functions.CachedModel) bool { return c.Source == at && c.Digest != weights }
	return slices.ContainsFunc(nodes(), func(n functions.Node) bool { return slices.ContainsFunc(n.Cached, other) })
}

// stageModel stages a model ahead of its use, and with memory also into the page cache: on a node that
// has it, else on the one with the most free space.
func (l *Local) stageModel(ctx context.Context, m *functions.Model, memory bool) error {
	if m.Spec.Source == "" {
		return nil // it has no weights
	}
	node := ""
	if scheme, at, err := loader.Locate(m.Spec.Source, m.Dir); err == nil {
		if scheme == "file" {
			node = l.node.ID() // another machine need not have the folder
		}
		for _, n := range l.Nodes() {
			if !n.Lost && slices.ContainsFunc(n.Cached, func(c functions.CachedModel) bool { return c.Source == at }) {
				node = n.ID
				break
			}
		}
	}
	var last functions.StoreProgress
	r := functions.PrefetchRequest{Source: m.Spec.Source, Dir: m.Dir, Files: m.Spec.StagedFiles(), Memory: memory, Low: true}
	if err := l.Prefetch(ctx, node, r, func(p functions.StoreProgress) { last = p }); err != nil {
		return err
	}
	if last.State != "ready" {
		if last.Error != nil {
			return last.Error
		}
		return errors.New("it ended before all had come")
	}
	return nil
}

// nodeWithMostSpace returns the node with the most free space; if none is known, the one in this
// process.
func (l *Local) nodeWithMostSpace() string {
	best, most := l.node.ID(), functions.Bytes(-1)
	for _, n := range l.Nodes() {
		if free := n.Store.Bytes - n.Store.Used; !n.Lost && (free > most || free == most && n.ID == l.node.ID()) {
			best, most = n.ID, free
		}
	}
	return best
}
