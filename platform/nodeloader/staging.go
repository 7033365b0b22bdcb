package nodeloader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

// maxPodCheckpoints bounds the checkpoints of one pod: a model and its adapters.
const maxPodCheckpoints = 256

type podStaging struct {
	controlstream.Stage
	cancel context.CancelFunc
}

// startStaging starts a staging that a pod requests, or leaves a running one alone.
func (s *shim) startStaging(ctx context.Context, a controlstream.Stage, staging *sync.WaitGroup) {
	if err := a.Check(); err != nil {
		s.d.counts.refused.Add(1)
		s.sendFailure(a.ID, refusal(err.Error(), ""))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.stages[a.ID]; old != nil {
		if reflect.DeepEqual(old.Stage, a) {
			return // already running
		}
		old.cancel()
		delete(s.stages, a.ID)
	}
	if len(s.stages) >= s.d.o.PodStages {
		s.d.counts.refused.Add(1)
		s.sendFailure(a.ID, refusal(fmt.Sprintf("a pod may want %d checkpoints at once", s.d.o.PodStages), ""))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	st := &podStaging{a, cancel}
	s.stages[a.ID] = st
	staging.Go(func() {
		defer cancel()
		c := s.stageForPod(ctx, st)
		s.mu.Lock()
		if s.stages[a.ID] == st {
			delete(s.stages, a.ID)
		}
		s.mu.Unlock()
		if c != nil {
			nodestore.ReadIntoMemory(ctx, c) // while the engine boots
		}
	})
}

// refusal returns an error of this loader's own rules.
func refusal(reason, fix string) *controlstream.Failed {
	return &controlstream.Failed{Kind: controlstream.KindRefused, Message: reason, Fix: fix}
}

func failure(err error) *controlstream.Failed {
	e, ok := errors.AsType[*source.Error](err)
	if !ok {
		return &controlstream.Failed{Kind: string(source.Broken), Message: err.Error()}
	}
	bare := *e
	bare.Fix = ""
	return &controlstream.Failed{Kind: string(e.Kind), Message: bare.Error(), Fix: e.Fix}
}

func (s *shim) sendFailure(id int, f *controlstream.Failed) {
	f.ID = id
	s.out.put(controlstream.ToPod{Failed: f})
}

// stageForPod stages for a pod and reports progress; nil if it failed, which it reports as
// well.
func (s *shim) stageForPod(ctx context.Context, a *podStaging) *loader.Checkpoint {
	d := s.d
	locationKey, f := d.checkSource(a.Source, a.Files)
	if f == nil && d.o.Private && !s.folders {
		f = refusal("this thaw runtime does not take folders over the socket, and the node's store is closed to pods",
			"deploy the model with a thaw as new as the node's loader")
	}
	if f == nil {
		f = d.owners.checkPod(ctx, s.uid, a.Source)
	}
	if f == nil && !s.reserveBytes(locationKey, 0) {
		f = refusal(fmt.Sprintf("a pod may hold %d checkpoints", maxPodCheckpoints), "")
	}
	if f != nil {
		d.counts.refused.Add(1)
		d.complain("a pod's staging is refused", "pod", s.uid, "source", a.Source, "kind", f.Kind, "error", f.Message)
		s.sendFailure(a.ID, f)
		return nil
	}
	// A pod that waits for its owner takes no slot.
	if !s.awaitSlot(ctx, a.ID) {
		s.reportEnding(a.ID)
		return nil
	}
	defer func() { <-d.slots }()
	c := d.takePrefetched(locationKey, a.Digest)
	if c != nil && !s.reserveBytes(locationKey, c.Bytes) {
		c.Lease.Release()
		c = nil // refused below like any other staging
	}
	if c == nil {
		c = s.stageSource(ctx, a, locationKey)
	}
	if c == nil {
		return nil
	}
	var folder []*os.File
	if s.folders {
		f, err := os.Open(c.Path)
		if err != nil {
			c.Lease.Release()
			d.counts.failed.Add(1)
			s.sendFailure(a.ID, failure(err))
			return nil
		}
		folder = append(folder, f)
	}
	s.retain(c)
	d.endPrefetch(locationKey)
	d.counts.staged.Add(1)
	d.changes.Set()
	names := functions.ConvertAll(c.Files, func(f loader.File) string { return f.Name })
	s.out.put(controlstream.ToPod{Staged: &controlstream.Staged{ID: a.ID, Path: c.Path, Digest: c.Digest, Bytes: c.Bytes, Files: names,
		Folder: s.folders}}, folder...)
	return c
}

// stageSource stages the source's present checkpoint; nil if it failed, which it reports.
func (s *shim) stageSource(ctx context.Context, a *podStaging, locationKey string) *loader.Checkpoint {
	d := s.d
	t, err := d.o.Store.Loader().Stage(ctx, a.Source, loader.StageOptions{Digest: a.Digest, Files: a.Files})
	if err != nil {
		if ctx.Err() != nil {
			s.reportEnding(a.ID)
			return nil
		}
		s.sendFailure(a.ID, failure(err))
		return nil
	}
	if f := s.forwardProgress(ctx, a.ID, locationKey, t); f != nil {
		t.Release()
		d.counts.refused.Add(1)
		s.sendFailure(a.ID, f)
		return nil
	}
	c, err := t.Wait(ctx)
	gone := err != nil && ctx.Err() != nil
	if gone && !s.reportEnding(a.ID) {
		// The pod may be restarted.
		d.continuePrefetch(locationKey, t, "the pod that wanted it is gone")
		return nil
	}
	t.Release() // the lease remains
	if err != nil && !gone {
		d.counts.failed.Add(1)
		s.sendFailure(a.ID, failure(err))
	}
	return c // nil with an error
}

// awaitSlot waits for a slot; false if ctx ended first.
func (s *shim) awaitSlot(ctx context.Context, id int) bool {
	select {
	case s.d.slots <- struct{}{}:
		return true
	default:
	}
	s.out.put(controlstream.ToPod{Staging: &controlstream.Staging{ID: id, State: string(loader.Waiting), Note: "others are staged first"}})
	select {
	case s.d.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// reportEnding reports whether this loader is ending, and sends that to the pod.
func (s *shim) reportEnding(id int) (ending bool) {
	if ending = s.d.ending(); ending {
		s.sendFailure(id, &controlstream.Failed{Kind: controlstream.KindEnding, Message: "the node's loader ends; what has arrived stays"})
	}
	return ending
}

// forwardProgress sends progress to the pod until the staging ends or ctx does; it returns
// a refusal if the checkpoint exceeds the pod's bytes.
func (s *shim) forwardProgress(ctx context.Context, id int, locationKey string, t *loader.Staging) *controlstream.Failed {
	events, stop := t.Events()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case p, ok := <-events:
			if !ok || p.State == loader.Ready || p.State == loader.Failed {
				return nil
			}
			if !s.reserveBytes(locationKey, p.Total) {
				return refusal(fmt.Sprintf("with the %d bytes of this the pod would have more staged than the %s it may", p.Total, s.d.o.PodBytes),
					"--pod-bytes of the node's loader is the bound")
			}
			s.out.put(controlstream.ToPod{Staging: &controlstream.Staging{ID: id, Done: p.Done, Total: p.Total, State: string(p.State),
				Note: p.Problem}})
		}
	}
}

// reserveBytes counts a checkpoint's bytes for a pod; false if that exceeds its bounds.
func (s *shim) reserveBytes(locationKey string, bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.bytes[locationKey]; !ok && len(s.bytes) >= maxPodCheckpoints {
		return false
	}
	s.bytes[locationKey] = max(s.bytes[locationKey], bytes)
	if s.d.o.PodBytes <= 0 {
		return true
	}
	var sum int64
	for _, n := range s.bytes {
		sum += n
	}
	if sum > int64(s.d.o.PodBytes) {
		delete(s.bytes, locationKey)
		return false
	}
	return true
}

// retain holds a checkpoint for as long as the connection lives. An older lease of its
// digest ends: it may be of a folder that a verification has removed.
func (s *shim) retain(c *loader.Checkpoint) {
	s.mu.Lock()
	old, twice := s.leases[c.Digest]
	s.leases[c.Digest] = c.Lease
	s.mu.Unlock()
	if twice {
		old.Release()
		return
	}
	s.d.leases.add(c.Digest)
}

// checkSource returns the store's key for a source and its file patterns, or the refusal.
func (d *Daemon) checkSource(src string, files source.Globs) (string, *controlstream.Failed) {
	scheme, location, err := loader.Locate(src, "")
	if err != nil {
		return "", failure(err)
	}
	switch scheme {
	case loader.PeerScheme:
		return "", refusal("folders of other nodes are no source of a pod", "")
	case "file":
		folder := strings.TrimPrefix(location, "file://")
		if !slices.ContainsFunc(d.o.Folders, func(f string) bool { return isBelow(folder, filepath.Clean(f)) }) {
			return "", refusal(fmt.Sprintf("%s is a folder of the node, and not one of those that are staged", location),
				"--folder of the node's loader names them (chart: loader.folders); or upload it and name it as az://, s3://, gs:// or hf://")
		}
	default:
		if len(d.o.Allow) > 0 && !isListed(location, d.o.Allow) {
			return "", refusal(fmt.Sprintf("%s is not among the sources that are staged here", location),
				"--allow-source of the node's loader names them")
		}
	}
	return store.LocationKey(location, files), nil
}

// isListed reports whether a source is one of a list, or below one.
func isListed(location string, sources []string) bool {
	return slices.ContainsFunc(sources, func(s string) bool { return isBelow(location, strings.TrimRight(s, "/")) })
}

func isBelow(name, root string) bool {
	rest, ok := strings.CutPrefix(name, root)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(root, "/"))
}

// startVerification starts to read a checkpoint again that the pod holds. A pod has one
// verification at a time, and the node reads for one pod after another.
func (s *shim) startVerification(ctx context.Context, v controlstream.Verify, background *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	problem := ""
	switch {
	case s.leases[v.Digest] == nil:
		problem = "the pod does not hold this checkpoint"
	case s.verifying:
		problem = "a checkpoint of this pod is being verified already"
	}
	if problem != "" {
		s.d.counts.refused.Add(1)
		s.out.put(controlstream.ToPod{Verified: &controlstream.Verified{ID: v.ID, Error: problem}})
		return
	}
	s.verifying = true
	background.Go(func() {
		answer := s.d.verify(ctx, v.Digest)
		s.mu.Lock()
		s.verifying = false
		s.mu.Unlock()
		if ctx.Err() != nil {
			return // the pod is gone, or asks the next loader
		}
		answer.ID = v.ID
		s.out.put(controlstream.ToPod{Verified: &answer})
	})
}

// verify reads a checkpoint again and removes it if it is damaged. A checkpoint that
// another pod's verification has removed counts as damaged: it is staged again.
func (d *Daemon) verify(ctx context.Context, digest string) controlstream.Verified {
	select {
	case d.reading <- struct{}{}:
		defer func() { <-d.reading }()
	case <-ctx.Done():
		return controlstream.Verified{Error: ctx.Err().Error()}
	}
	err := d.o.Store.Loader().Verify(ctx, digest)
	if err == nil {
		return controlstream.Verified{}
	}
	kind := source.KindOf(err)
	damaged := kind == source.Digest || kind == source.Missing
	if damaged {
		d.o.Log.Warn("a pod's checkpoint is damaged and was removed; it is staged again", "digest", digest, "error", err)
		d.changes.Set()
	}
	return controlstream.Verified{Damaged: damaged, Error: err.Error()}
}
