package nodeloader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestPodIsServed(t *testing.T) {
	l := newLab(t, nil)
	p := l.pod("u1")
	p.want(1, modelLocation)
	m, states := p.answer(1)
	if m.Staged == nil || !slices.IsSorted([]string{m.Staged.Files[0], m.Staged.Files[1]}) || len(m.Staged.Files) != 2 || m.Staged.Bytes < 100_000 {
		t.Fatalf("%+v, %+v", m.Staged, m.Failed)
	}
	if len(states) == 0 || states[0] != "planning" && states[0] != "fetching" && states[0] != "verifying" && states[0] != "publishing" {
		t.Errorf("on the way: %v", states)
	}
	rel, err := filepath.Rel(l.dir, m.Staged.Path)
	if err != nil || !filepath.IsLocal(rel) {
		t.Errorf("%s is not in the store %s", m.Staged.Path, l.dir)
	}
	if b, err := os.ReadFile(filepath.Join(m.Staged.Path, "config.json")); err != nil || string(b) != `{"model_type":"llama"}` {
		t.Errorf("%q, %v", b, err)
	}
	if !l.inUse(m.Staged.Digest) {
		t.Error("it is not held")
	}
	// The heartbeat lists the checkpoint.
	l.until("the checkpoint", func(u controlstream.Report) bool {
		return u.Node != nil && len(u.Node.Cached) == 1 && u.Node.Cached[0].Digest == m.Staged.Digest && u.Node.AgentID == "node-a" &&
			u.Node.Memory.Total == 1<<30
	})
	// A repeated request is answered at once.
	p.want(2, modelLocation)
	if again := p.staged(2); again.Digest != m.Staged.Digest || again.Path != m.Staged.Path {
		t.Errorf("%+v", again)
	}
	p.send(controlstream.FromPod{Status: new(isReady())})
	l.until("READY", func(u controlstream.Report) bool {
		return len(u.Pods) == 1 && u.Pods[0].UID == "u1" && u.Pods[0].Status.State == functions.Ready
	})
	if first := l.FullReport(); len(first.Pods) != 1 || first.Pods[0].UID != "u1" || first.Pods[0].Status.Endpoint != "http://10.0.0.7:8080" ||
		first.Node == nil {
		t.Errorf("to a new controller: %+v", first)
	}
	p.Close()
	l.until("that it is gone", func(u controlstream.Report) bool { return len(u.Pods) == 1 && u.Pods[0].UID == "u1" && u.Pods[0].Gone })
	if first := l.FullReport(); len(first.Pods) != 0 {
		t.Errorf("after its end: %+v", first.Pods)
	}
	l.eventually("the checkpoint is let go", func() bool { return !l.inUse(m.Staged.Digest) })
}

// TestPodMessages: a status applies only to the pod's own replica.
func TestPodMessages(t *testing.T) {
	l := newLab(t, nil)
	p := l.pod("u1")
	st := isReady()
	st.ID, st.Team, st.Model, st.Key, st.GPUs, st.Spec = "other", "victim", "llama", "secret", []int{1}, &functions.ModelSpec{Source: "az://x/y"}
	st.InFlight, st.Since = 3, 100
	p.send(controlstream.FromPod{Status: &st})
	u := l.until("a status", func(u controlstream.Report) bool { return len(u.Pods) > 0 })
	got := u.Pods[0].Status
	if u.Pods[0].UID != "u1" || got.ID != "" || got.Team != "" || got.Model != "" || got.Key != "" || got.Spec != nil || got.GPUs != nil ||
		got.InFlight != 3 {
		t.Errorf("%+v", u.Pods[0])
	}
	// A repeated status is sent on: the controller may not have known the pod before.
	st.Since = 5000
	p.send(controlstream.FromPod{Status: &st})
	l.until("the same again", func(u controlstream.Report) bool { return len(u.Pods) > 0 && u.Pods[0].Status.Since == 5000 })
}

// TestMessageBounds: an oversized status is cut down to its bounds.
func TestMessageBounds(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	st := functions.ReplicaStatus{State: functions.State(long), Error: long, Endpoint: long, AdapterNotes: map[string]string{long: "a", "b": long}}
	for range 1000 {
		st.Adapters = append(st.Adapters, long)
		st.Phases = append(st.Phases, functions.Span{Phase: functions.Phase(long), Parts: []functions.Part{{Name: long}, {Name: "a"}}})
	}
	got := sanitizeStatus(st)
	if b, err := json.Marshal(got); err != nil || len(b) > 300_000 || len(got.AdapterNotes) != 1 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	many := map[string]string{}
	for i := range 1000 {
		many[fmt.Sprint(i)] = ""
	}
	if got := sanitizeStatus(functions.ReplicaStatus{AdapterNotes: many}); got.AdapterNotes != nil {
		t.Errorf("%d notes", len(got.AdapterNotes))
	}
	whole := functions.ReplicaStatus{State: functions.Ready, Bytes: 5, Adapters: []string{"a"}, Phases: []functions.Span{{Phase: functions.PhaseLoad, Parts: []functions.Part{{Name: "p"}}}}, AdapterNotes: map[string]string{"a": "n"}}
	if got := sanitizeStatus(whole); !reflect.DeepEqual(got, whole) {
		t.Errorf("%+v", got)
	}
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxLines = 200
		p := lineLimiter{perSecond: maxLines}
		began := time.Now()
		for range 10 * maxLines {
			if !p.wait(t.Context()) {
				t.Fatal("over")
			}
		}
		if took := time.Since(began); took < 8*time.Second || took > 11*time.Second {
			t.Errorf("%s for %d lines", took, 10*maxLines)
		}
		time.Sleep(2 * time.Second)
		began = time.Now()
		if !p.wait(t.Context()) || time.Since(began) != 0 {
			t.Error("who is quiet waits")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 * maxLines {
			if !p.wait(ctx) {
				return
			}
		}
		t.Error("it waits although no other staging runs")
	})
}

// TestDials: one pod cannot use up the connections of the others.
func TestDials(t *testing.T) {
	l := newLab(t, nil)
	for range maxPodConnections {
		l.dial("u1") // never sends a hello
	}
	l.eventually("they are known", func() bool {
		l.Daemon.mu.Lock()
		defer l.Daemon.mu.Unlock()
		return l.connections["u1"] == maxPodConnections
	})
	if all := l.dial("u1").messages(); len(all) != 1 || all[0].Failed == nil || !strings.Contains(all[0].Failed.Message, "enough") {
		t.Errorf("%+v", all)
	}
	l.pod("u2")
}

// TestSharedStaging: requests for one source share a staging, which downloads its bytes once.
func TestSharedStaging(t *testing.T) {
	g := newGate()
	l := newLab(t, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) { mem.Before = g.files })
	var pods []*caller
	for i := range 3 {
		p := l.pod(fmt.Sprintf("u%d", i))
		p.want(1, modelLocation)
		pods = append(pods, p)
	}
	for _, p := range pods {
		for p.receive().Staging.State != "fetching" {
		}
	}
	close(g.open)
	paths := map[string]bool{}
	for _, p := range pods {
		paths[p.staged(1).Path] = true
	}
	if n := g.reads.Load(); len(paths) != 1 || n != 2 {
		t.Errorf("%d reads of 2 files, paths %v", n, paths)
	}
}

func TestRefusals(t *testing.T) {
	outside, inside := folder(t), folder(t)
	for name, body := range map[string][]byte{"config.json": []byte("{}"), "model.safetensors": weights(1000, 9)} {
		if err := os.WriteFile(filepath.Join(inside, name), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := newLab(t, func(o *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
		o.Folders, o.Allow, o.PodBytes = []string{inside}, []string{"mem://models/", "mem://other/one"}, 200_000
		aModel(mem, "mem://models/big", 150_000, 2)
		aModel(mem, "mem://models/small", 10_000, 4)
		aModel(mem, "mem://other/one", 1000, 3)
		aModel(mem, "mem://other/onemore", 1000, 3)
		mem.Put("mem://models/bad", "model.safetensors", []byte("no weights"))
	})
	p := l.pod("u1")
	id := 0
	for _, x := range []struct{ name, source, digest, kind, wantText string }{
		{"nothing there", "mem://models/none", "", "source_not_found", "nothing here"},
		{"an unknown scheme", "gopher://models/x", "", "refused_by_loader", "not among"},
		{"what is not let through", "mem://hidden/x", "", "refused_by_loader", "not among"},
		{"a name that only begins so", "mem://other/onemore", "", "refused_by_loader", "not among"},
		{"what is let through", "mem://other/one", "", "", ""},
		{"a credential in it", "mem://models/x?sig=secret", "", "bad_source", "query"},
		{"a relative folder", "models/x", "", "bad_source", ""},
		{"a folder of the node", "file://" + outside, "", "refused_by_loader", "folder of the node"},
		{"one that begins like it", "file://" + inside + "x", "", "refused_by_loader", "folder of the node"},
		{"one above", "file://" + inside + "/..", "", "refused_by_loader", "folder of the node"},
		{"one that is let in", "file://" + inside, "", "", ""},
		{"a folder of another node", "peer://node-b/models", "", "refused_by_loader", "other nodes"},
		{"another digest", "mem://models/llama", "sha256:" + strings.Repeat("0", 64), "digest_mismatch", ""},
		{"no digest", "mem://models/llama", "sha256:short", "bad_source", ""},
		{"no weights", "mem://models/bad", "", "weights_corrupt", ""},
		{"a model", "mem://models/llama", "", "", ""},
		{"more than a pod may hold", "mem://models/big", "", "refused_by_loader", "more staged"},
		{"the same as before", "mem://models/llama", "", "", ""},
		{"what still fits", "mem://models/small", "", "", ""},
	} {
		id++
		p.send(controlstream.FromPod{Stage: &controlstream.Stage{ID: id, Source: x.source, Digest: x.digest}})
		m, _ := p.answer(id)
		if x.kind == "" {
			if m.Staged == nil {
				t.Errorf("%s: %+v", x.name, m.Failed)
			} else if rel, err := filepath.Rel(l.dir, m.Staged.Path); err != nil || !filepath.IsLocal(rel) {
				t.Errorf("%s: %s is not in the store", x.name, m.Staged.Path)
			}
			continue
		}
		if m.Failed == nil || m.Failed.Kind != x.kind || !strings.Contains(m.Failed.Message, x.wantText) || m.Failed.Message == "" ||
			strings.Contains(m.Failed.Message, "secret") {
			t.Errorf("%s: %+v, %+v", x.name, m.Staged, m.Failed)
		}
	}
	// A malformed request is refused, and the connection stays open.
	p.send(controlstream.FromPod{Stage: &controlstream.Stage{ID: 0, Source: modelLocation}})
	if m, _ := p.answer(0); m.Failed == nil || m.Failed.Kind != controlstream.KindRefused {
		t.Errorf("no id: %+v", m)
	}
}

func TestFirstLine(t *testing.T) {
	l := newLab(t, nil)
	for name, x := range map[string]struct{ uid, line, wantText string }{
		"no pod":         {"", `{"hello":{}}` + "\n", "no pod"},
		"no hello":       {"u1", `{"status":{}}` + "\n", "no hello"},
		"no JSON":        {"u1", "GET / HTTP/1.1\r\n\r\n", "no hello"},
		"a line too far": {"u1", strings.Repeat("{", controlstream.MaxLine+1), "no hello"},
	} {
		p := l.dial(x.uid)
		io.WriteString(p, x.line) // the loader may close the connection before the end
		all := p.messages()
		if len(all) == 0 && name == "a line too far" {
			continue // unread input resets the connection
		}
		if len(all) != 1 || all[0].Failed == nil || all[0].Failed.Kind != controlstream.KindRefused ||
			!strings.Contains(all[0].Failed.Message, x.wantText) {
			t.Errorf("%s: %+v", name, all)
		}
	}
	// A malformed line ends the connection, and the pod is reported gone.
	p := l.pod("u2")
	io.WriteString(p, "{]\n")
	p.messages()
	l.until("that it is gone", func(u controlstream.Report) bool { return len(u.Pods) == 1 && u.Pods[0].UID == "u2" && u.Pods[0].Gone })
	if h := l.Health(); h.Pods != 0 || !h.Ready {
		t.Errorf("%+v", h)
	}
}

// TestSecondConnection: only a pod's newest connection is used.
func TestSecondConnection(t *testing.T) {
	l := newLab(t, nil)
	old := l.pod("u1")
	old.want(1, modelLocation)
	digest := old.staged(1).Digest
	p := l.pod("u1")
	old.messages()
	p.want(1, modelLocation)
	p.staged(1)
	p.send(controlstream.FromPod{Status: new(isReady())})
	l.until("READY", func(u controlstream.Report) bool {
		return len(u.Pods) == 1 && u.Pods[0].Status.State == functions.Ready
	})
	if !l.inUse(digest) {
		t.Error("it is not held")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.reports {
		if len(u.Pods) > 0 && u.Pods[0].Gone {
			t.Errorf("a pod that dialled again was said to be gone")
		}
	}
}

func TestTooMany(t *testing.T) {
	g := newGate()
	l := newLab(t, func(o *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
		o.Pods, o.PodStages, o.Stages = 2, 2, 1
		mem.Before = g.all
		for i := range 3 {
			aModel(mem, fmt.Sprintf("mem://models/%d", i), 1000, byte(i))
		}
	})
	p := l.pod("u1")
	p.want(1, "mem://models/0")
	for p.receive().Staging.State != "planning" {
	}
	p.want(2, "mem://models/1") // waits for a slot
	for m := p.receive(); m.Staging.ID != 2; m = p.receive() {
		if m.Staging == nil {
			t.Fatalf("%+v", m)
		}
	}
	p.want(3, "mem://models/2")
	if m, _ := p.answer(3); m.Failed == nil || m.Failed.Kind != controlstream.KindRefused {
		t.Errorf("%+v", m)
	}
	p.want(2, "mem://models/1") // a repeated request is the same request
	l.pod("u2")
	third, err := net.Dial("unix", filepath.Join(l.dir, SocketPath))
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	third.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := third.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a third is let in: %v", err)
	}
	close(g.open)
	for _, id := range []int{1, 2} {
		p.staged(id)
	}
}

func TestStop(t *testing.T) {
	l := newLab(t, nil)
	p := l.pod("u1")
	l.OnUpdate(controlstream.Update{Stop: []controlstream.Stop{{UID: "u1", Seconds: 30, Reason: "evicted"}, {UID: "u2", Seconds: 5, Reason: "later"}}})
	if m := p.receive(); m.Stop == nil || *m.Stop != (controlstream.Drain{Seconds: 30, Reason: "evicted"}) {
		t.Errorf("%+v", m)
	}
	// A stop for a disconnected shim is sent when it connects again.
	if m := l.pod("u2").receive(); m.Stop == nil || *m.Stop != (controlstream.Drain{Seconds: 5, Reason: "later"}) {
		t.Errorf("%+v", m)
	}
	// A stop that has waited too long is for a pod that is gone.
	l.Daemon.mu.Lock()
	l.pendingStops["u3"] = pendingStop{at: time.Now().Add(-stopWait - time.Second)}
	l.Daemon.mu.Unlock()
	old := l.pod("u3")
	old.want(1, "mem://models/none")
	if m := old.receive(); m.Stop != nil {
		t.Errorf("an old stop is sent: %+v", m.Stop)
	}
	for i := range maxStops + 10 {
		l.OnUpdate(controlstream.Update{Stop: []controlstream.Stop{{UID: fmt.Sprint("x", i)}}})
	}
	l.Daemon.mu.Lock()
	defer l.Daemon.mu.Unlock()
	if n := len(l.pendingStops); n > maxStops {
		t.Errorf("%d are kept for pods that do not come", n)
	}
}

func toFetch(source string) controlstream.Update {
	return controlstream.Update{Prefetch: []functions.LoadRequest{{ID: "r1", Team: "a", Model: "llama", Spec: functions.ModelSpec{Source: source}}}}
}

// TestPrefetchBeforePod: a pod joins the prefetch that the controller requested before it
// came.
func TestPrefetchBeforePod(t *testing.T) {
	g := newGate()
	l := newLab(t, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) { mem.Before = g.files })
	l.OnUpdate(toFetch(modelLocation))
	l.eventually("it is listed", func() bool { return g.plans.Load() == 1 })
	l.OnUpdate(toFetch(modelLocation)) // repeated
	l.OnUpdate(toFetch("file:///etc"))
	l.OnUpdate(toFetch(""))
	p := l.pod("u1")
	p.want(1, modelLocation)
	for p.receive().Staging.State != "fetching" {
	}
	close(g.open)
	c := p.staged(1)
	if n := g.plans.Load(); n != 1 {
		t.Errorf("listed %d times: the pod did not join", n)
	}
	l.eventually("it was used", func() bool { return l.counts.used.Load() == 1 })
	if h := l.Health(); h.Prefetches != 0 || !l.inUse(c.Digest) {
		t.Errorf("%+v, held: %v", h, l.inUse(c.Digest))
	}
	// A prefetch of a checkpoint that a pod holds does nothing.
	l.OnUpdate(toFetch(modelLocation))
	if h := l.Health(); h.Prefetches != 0 {
		t.Errorf("%+v", h)
	}
}

// TestPrefetchesBounded: of many models that the controller requests at once, a node stages
// maxPrefetches, and a pod of another one is served all the same.
func TestPrefetchesBounded(t *testing.T) {
	const more = 8
	g := newGate()
	location := func(i int) string { return fmt.Sprintf("mem://models/m%d", i) }
	l := newLab(t, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
		mem.Before = g.files
		for i := range maxPrefetches + more {
			aModel(mem, location(i), 1000, byte(i))
		}
	})
	for i := range maxPrefetches + more {
		l.OnUpdate(toFetch(location(i)))
	}
	if h := l.Health(); h.Prefetches != maxPrefetches {
		t.Errorf("%d prefetches, want %d", h.Prefetches, maxPrefetches)
	}
	close(g.open)
	p := l.pod("u1")
	p.want(1, location(maxPrefetches+more-1))
	p.staged(1)
	if n := g.plans.Load(); n > maxPrefetches+more {
		t.Errorf("%d models were listed", n)
	}
}

// TestPrefetchUsed: a pod gets a complete prefetch without waiting.
func TestPrefetchUsed(t *testing.T) {
	var plans atomic.Int64
	l := newLab(t, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
		mem.Before = func(_ context.Context, name string, _, _ int64) error {
			if name == "" {
				plans.Add(1)
			}
			return nil
		}
	})
	l.OnUpdate(toFetch(modelLocation))
	l.eventually("it is here", func() bool {
		l.Daemon.mu.Lock()
		defer l.Daemon.mu.Unlock()
		for _, a := range l.Daemon.prefetches {
			return a.checkpoint != nil
		}
		return false
	})
	p := l.pod("u1")
	p.want(1, modelLocation)
	m, states := p.answer(1)
	if m.Staged == nil || len(states) != 0 || plans.Load() != 1 || len(m.Staged.Files) != 2 {
		t.Fatalf("%+v, %v, listed %d times", m, states, plans.Load())
	}
	l.eventually("it was used", func() bool { return l.counts.used.Load() == 1 })
	if !l.inUse(m.Staged.Digest) {
		t.Error("it is not held")
	}
	// A request for another digest does not use the prefetch.
	l.OnUpdate(toFetch("mem://models/none"))
	p.send(controlstream.FromPod{Stage: &controlstream.Stage{ID: 2, Source: modelLocation, Digest: "sha256:" + strings.Repeat("0", 64)}})
	if m, _ := p.answer(2); m.Failed == nil || m.Failed.Kind != "digest_mismatch" {
		t.Errorf("%+v", m)
	}
}

// TestOldPrefetch: a prefetch counts as the source's present checkpoint for a minute only.
// A pod that comes later gets what the source holds then.
func TestOldPrefetch(t *testing.T) {
	for age, stale := range map[time.Duration]bool{prefetchFreshFor / 2: false, prefetchFreshFor + time.Second: true} {
		l := newLab(t, nil)
		l.OnUpdate(toFetch(modelLocation))
		l.eventually("it is here", func() bool {
			l.Daemon.mu.Lock()
			defer l.Daemon.mu.Unlock()
			for _, a := range l.Daemon.prefetches {
				if a.checkpoint != nil {
					a.began = time.Now().Add(-age)
					return true
				}
			}
			return false
		})
		l.mem.Put(modelLocation, "config.json", []byte(`{"model_type":"changed"}`))
		p := l.pod("u1")
		p.want(1, modelLocation)
		b, err := os.ReadFile(filepath.Join(p.staged(1).Path, "config.json"))
		if err != nil || strings.Contains(string(b), "changed") != stale {
			t.Errorf("after %v: %s, %v", age, b, err)
		}
		l.stop()
	}
}

// TestOneCheckpointTwice: a pod that requested one checkpoint under two ids holds nothing
// of it after its end: it can be removed.
func TestOneCheckpointTwice(t *testing.T) {
	l := newLab(t, nil)
	p := l.pod("u1")
	p.want(1, modelLocation)
	digest := p.staged(1).Digest
	p.want(2, modelLocation)
	p.staged(2)
	if err := l.store.ChangeCheckpoint(t.Context(), digest, functions.StoreRemove); err == nil {
		t.Fatal("removed while the pod holds it")
	}
	// The collector closes the file of a lease that is forgotten, at some time.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	p.Close()
	l.until("that it is gone", func(u controlstream.Report) bool { return len(u.Pods) == 1 && u.Pods[0].Gone })
	l.eventually("it is let go", func() bool {
		l.leases.mu.Lock()
		defer l.leases.mu.Unlock()
		return l.leases.counts[digest] == 0
	})
	if err := l.store.ChangeCheckpoint(t.Context(), digest, functions.StoreRemove); err != nil {
		t.Error(err)
	}
}

// TestNoSpace: a checkpoint that a pod holds is not evicted; others are.
func TestNoSpace(t *testing.T) {
	l := newLab(t, func(_ *Options, storeOptions *nodestore.Options, mem *sourcetest.Memory) {
		storeOptions.Budget = 250_000
		aModel(mem, "mem://models/other", 200_000, 7)
	})
	p := l.pod("u1")
	p.want(1, modelLocation)
	digest := p.staged(1).Digest
	other := l.pod("u2")
	other.want(1, "mem://models/other")
	if m, _ := other.answer(1); m.Failed == nil || m.Failed.Kind != "insufficient_disk" ||
		!strings.Contains(m.Failed.Message, "bytes") && m.Failed.Fix == "" {
		t.Fatalf("%+v", m)
	}
	p.Close()
	l.eventually("it is let go", func() bool { return !l.inUse(digest) })
	other.want(2, "mem://models/other")
	other.staged(2)
	l.until("what is there now", func(u controlstream.Report) bool {
		return u.Node != nil && len(u.Node.Cached) == 1 && u.Node.Cached[0].Bytes > 200_000
	})
}

// TestPrefetchUnused: a prefetch that no pod comes for is cancelled.
func TestPrefetchUnused(t *testing.T) {
	for _, arrives := range []bool{true, false} {
		l := newLab(t, func(o *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
			if o.PrefetchFor = time.Second; arrives {
				o.PrefetchFor = testTimeout // cut short below, once it is complete
			}
			mem.Before = func(ctx context.Context, name string, _, _ int64) error {
				if name == "" || arrives {
					return nil
				}
				<-ctx.Done()
				return context.Cause(ctx)
			}
		})
		l.OnUpdate(toFetch(modelLocation))
		if arrives {
			l.eventually("it is here", func() bool {
				l.Daemon.mu.Lock()
				defer l.Daemon.mu.Unlock()
				for _, a := range l.Daemon.prefetches {
					if a.checkpoint != nil {
						a.timer.Reset(0)
						return true
					}
				}
				return false
			})
		}
		l.eventually("it was given up", func() bool { return l.counts.wasted.Load() == 1 })
		list, err := l.store.Checkpoints().List()
		if err != nil || (len(list) == 1) != arrives || arrives && list[0].Leased {
			t.Errorf("arrives %v: %+v, %v", arrives, list, err)
		}
		l.eventually("nothing is under way", func() bool { return l.store.Stats().Stagings == 0 })
		if err := l.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestPodEndsDuringStaging: a pod may be restarted, so its staging goes on for a while.
func TestPodEndsDuringStaging(t *testing.T) {
	g := newGate()
	l := newLab(t, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) { mem.Before = g.files })
	p := l.pod("u1")
	p.want(1, modelLocation)
	for p.receive().Staging.State != "fetching" {
	}
	p.Close()
	l.eventually("it is kept at", func() bool { return l.Health().Prefetches == 1 })
	close(g.open)
	p = l.pod("u2")
	p.want(1, modelLocation)
	p.staged(1)
	if n := g.reads.Load(); n != 2 {
		t.Errorf("%d reads of 2 files", n)
	}
}

// TestEndWhileStaging: the next loader continues from the bytes that have arrived, and the
// pod gets loader_ending, to retry there.
func TestEndWhileStaging(t *testing.T) {
	const big = 20 << 20 // three blocks
	dir := folder(t)
	l := restart(t, dir, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
		aModel(mem, modelLocation, big, 5)
		mem.Before = func(ctx context.Context, name string, offset, _ int64) error {
			if offset < 16<<20 {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
	})
	p := l.pod("u1")
	p.want(1, modelLocation)
	for {
		if m := p.receive(); m.Staging != nil && m.Staging.Done >= 16<<20 {
			break
		}
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	updates := p.messages()
	if len(updates) == 0 || updates[len(updates)-1].Failed == nil || updates[len(updates)-1].Failed.Kind != controlstream.KindEnding {
		t.Errorf("it was told %+v", updates)
	}
	for _, u := range l.reports {
		if len(u.Pods) > 0 && u.Pods[0].Gone {
			t.Error("a pod is said to be gone by a loader that goes")
		}
	}
	if _, err := os.Stat(filepath.Join(dir, SocketPath)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	next := restart(t, dir, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) { aModel(mem, modelLocation, big, 5) })
	p = next.pod("u1")
	p.want(1, modelLocation)
	p.staged(1)
	if s := next.store.Stats(); s.Resumed < 16<<20 || s.Bytes["mem"] > big-16<<20+1<<20 {
		t.Errorf("%d bytes were taken up, %d came", s.Resumed, s.Bytes["mem"])
	}
}

// TestLeasesSurviveRestart: pods' checkpoints are not evicted before the pods reconnect.
func TestLeasesSurviveRestart(t *testing.T) {
	dir := folder(t)
	l := restart(t, dir, nil)
	p := l.pod("u1")
	p.want(1, modelLocation)
	digest := p.staged(1).Digest
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	next := restart(t, dir, nil)
	if !next.inUse(digest) {
		t.Error("it is not held")
	}
	next.stop()
	// The leases file may have any content.
	for _, text := range []string{"", "{", "[1]", `["sha256:no","../../etc","sha256:` + strings.Repeat("0", 64) + `"]`, `["` + digest + `","` + digest + `"]`} {
		if err := os.WriteFile(filepath.Join(dir, leasesFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		again := restart(t, dir, nil)
		if got, want := again.inUse(digest), strings.Contains(text, digest); got != want {
			t.Errorf("%q: held %v", text, got)
		}
		again.stop()
	}
}

func TestOneDaemonPerFolder(t *testing.T) {
	l := newLab(t, nil)
	second := New(Options{Node: "b", Dir: l.dir, Store: l.store, LockWait: time.Millisecond})
	if err := second.Run(t.Context()); !errors.Is(err, ErrInUse) {
		t.Errorf("%v", err)
	}
	// A waiting daemon takes over.
	third := New(Options{Node: "c", Dir: l.dir, Store: l.store, LockWait: testTimeout})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- third.Run(ctx) }()
	l.Daemon.stopAccepting() // the store is shared here: only the daemon ends
	select {
	case <-third.Ready():
		t.Fatal("two at once")
	default:
	}
	l.stop()
	<-third.Ready()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestSocket: any user may dial the socket, and it replaces the old one at once.
func TestSocket(t *testing.T) {
	dir := folder(t)
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, SocketPath)), 0o755); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, SocketPath), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	l := restart(t, dir, nil)
	fi, err := os.Stat(filepath.Join(dir, SocketPath))
	if err != nil || fi.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", fi, err)
	}
	l.pod("u1")
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if fi, err := e.Info(); err == nil && fi.Mode()&0o022 != 0 && fi.Mode()&os.ModeSocket == 0 {
			t.Errorf("%s is %s", path, fi.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOutbox(t *testing.T) {
	hung := 0
	o := newOutbox(func() { hung++ })
	message := func(id int, done int64) {
		o.put(controlstream.ToPod{Staging: &controlstream.Staging{ID: id, Done: done}})
	}
	for i := range 1000 {
		message(1, int64(i))
		message(2, int64(i))
	}
	o.put(controlstream.ToPod{Staged: &controlstream.Staged{ID: 1}})
	lines, err := o.take()
	if err != nil || len(lines) != 2 || lines[0].Staging.ID != 2 || lines[0].Staging.Done != 999 || lines[1].Staged == nil {
		t.Errorf("%+v, %v", lines, err)
	}
	for range maxOutMessages + 1 {
		o.put(controlstream.ToPod{Failed: &controlstream.Failed{}})
	}
	if _, err := o.take(); err == nil || hung != 1 {
		t.Errorf("no bound: %v, %d", err, hung)
	}
	o.close()
	o.close()
	o.put(controlstream.ToPod{Failed: &controlstream.Failed{}})
}

// TestPodThatDoesNotRead: a pod is disconnected when too many lines wait for it.
func TestPodThatDoesNotRead(t *testing.T) {
	l := newLab(t, nil)
	p := l.pod("u1")
	go func() {
		for i := 0; ; i++ {
			if p.Send(controlstream.FromPod{Stage: &controlstream.Stage{ID: -1, Source: strings.Repeat("x", 1000)}}) != nil {
				return
			}
		}
	}()
	l.until("that it is gone", func(u controlstream.Report) bool { return len(u.Pods) == 1 && u.Pods[0].Gone })
}

func TestHeartbeat(t *testing.T) {
	l := newLab(t, func(o *Options, _ *nodestore.Options, _ *sourcetest.Memory) { o.PeerURL = "http://10.0.0.1:8091" })
	a, b := l.heartbeat(), l.heartbeat()
	if b.Seq <= a.Seq || a.Life == "" || a.Life != b.Life || a.Change == 0 || a.Change != b.Change || a.PeerURL != "http://10.0.0.1:8091" ||
		len(a.Models) != 0 {
		t.Errorf("%+v, %+v", a, b)
	}
	p := l.pod("u1")
	p.want(1, modelLocation)
	p.staged(1)
	l.until("a change", func(u controlstream.Report) bool {
		return u.Node != nil && u.Node.Change > a.Change && len(u.Node.Cached) == 1
	})
}

func TestHealth(t *testing.T) {
	l := newLab(t, nil)
	h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "numbers") }))
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	l.pod("u1")
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": `"pods":1`, "/metrics": "numbers"} {
		if code, body := get(path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	l.stop()
	if code, _ := get("/readyz"); code != 503 {
		t.Errorf("after its end: %d", code)
	}
}

// A loader whose disk has less free than has to stay free evicts what no pod uses, without a
// staging that asks for room.
func TestDiskStaysFree(t *testing.T) {
	first := newLab(t, nil)
	err := first.store.Prefetch(t.Context(), functions.PrefetchRequest{Source: modelLocation}, func(functions.StoreProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := first.store.Cached(t.Context()); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := restart(t, first.dir, func(_ *Options, o *nodestore.Options, _ *sourcetest.Memory) { o.KeepPercent = 100 })
	testkit.Eventually(t, "an empty store", func() bool {
		list, err := second.store.Cached(t.Context())
		return err == nil && len(list) == 0
	})
}
