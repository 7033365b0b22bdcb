package nodeloader

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

const (
	podA = "aaaaaaaa-1111-1111-1111-111111111111"
	podB = "bbbbbbbb-1111-1111-1111-111111111111"
	podC = "cccccccc-1111-1111-1111-111111111111"
)

func ofTeams(pods ...string) controlstream.Update {
	o := &controlstream.Owners{Said: true, Allow: map[string][]string{"b": {"mem://models/qwen/", "mem://else"}, "none": {}}, Pods: map[string]string{}}
	for i := 0; i < len(pods); i += 2 {
		o.Pods[pods[i]] = pods[i+1]
	}
	return controlstream.Update{Owners: o}
}

func twoModels(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
	aModel(mem, "mem://models/qwen", 50_000, 2)
	aModel(mem, "mem://models/qwen2", 50_000, 3)
}

// TestFirstList: with a controller nothing is staged before its first list, neither for a
// pod, which waits for it for a bounded time, nor ahead of one. Without a controller, and
// after a restart, no list is awaited.
func TestFirstList(t *testing.T) {
	dir := folder(t)
	governed := func(o *Options, _ *nodestore.Options, _ *sourcetest.Memory) {
		o.Connected = func() bool { return true }
	}
	l := restart(t, dir, governed)
	l.OnUpdate(toFetch(modelLocation)) // before any list
	if h := l.Health(); h.Prefetches != 0 {
		t.Errorf("%d stagings ahead", h.Prefetches)
	}
	p := l.pod(podA)
	p.want(1, modelLocation)
	p.send(controlstream.FromPod{Status: new(isReady())})
	l.until("the pod", func(u controlstream.Report) bool { return len(u.Pods) > 0 })
	if list, err := l.store.Checkpoints().List(); err != nil || len(list) != 0 || l.store.Stats().Stagings != 0 {
		t.Errorf("staged before the first list: %+v, %v", list, err)
	}
	l.OnUpdate(ofTeams(podA, "none"))
	if m, _ := p.answer(1); m.Failed == nil || m.Failed.Kind != controlstream.KindRefused {
		t.Errorf("%+v", m)
	}
	p.Close()
	l.OnUpdate(controlstream.Update{Owners: &controlstream.Owners{Said: true}})
	l.pod(podB).want(1, modelLocation)
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l = restart(t, dir, governed)
	p = l.pod(podB)
	p.want(1, modelLocation)
	p.staged(1)
}

// TestFirstListLate: the wait for the first list ends after 30 s with its reason.
func TestFirstListLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{Dir: t.TempDir(), Connected: func() bool { return false }})
		began := time.Now()
		f := d.owners.checkPod(t.Context(), podA, modelLocation)
		if f == nil || f.Kind != controlstream.KindRefused || !strings.Contains(f.Message, "has not heard from the controller") ||
			!strings.Contains(f.Fix, "thaw-controller") || time.Since(began) != firstOwnersWait {
			t.Errorf("after %v: %+v", time.Since(began), f)
		}
		// A list that comes late leaves the time in which an owner is awaited.
		began = time.Now()
		time.AfterFunc(5*time.Second, func() { d.owners.set(ofTeams(podB, "b").Owners) })
		if f := d.owners.checkPod(t.Context(), podA, modelLocation); f == nil || time.Since(began) != ownersWait {
			t.Errorf("after %v: %+v", time.Since(began), f)
		}
		if f := New(Options{}).owners.checkPod(t.Context(), podA, modelLocation); f != nil {
			t.Errorf("without a controller: %+v", f)
		}
	})
}

// TestUnknownOwnerTakesNoSlot: while a pod waits for its owner the only slot is free for
// another pod.
func TestUnknownOwnerTakesNoSlot(t *testing.T) {
	l := restart(t, folder(t), func(o *Options, _ *nodestore.Options, _ *sourcetest.Memory) { o.Stages = 1 })
	l.OnUpdate(ofTeams(podB, "other"))
	unknown := l.pod(podA)
	unknown.want(1, modelLocation)
	known := l.pod(podB)
	known.want(1, modelLocation)
	known.staged(1)
	l.OnUpdate(ofTeams(podB, "other", podA, "none"))
	if m, _ := unknown.answer(1); m.Failed == nil || !strings.Contains(m.Failed.Message, "that namespace none may have") {
		t.Errorf("%+v", m)
	}
}

// TestTeamsLists: a team with a list gets the sources on it and no others, including
// staged checkpoints and prefetches, and also after a restart of the loader.
func TestTeamsLists(t *testing.T) {
	dir := folder(t)
	l := restart(t, dir, twoModels)
	get := func(l *lab, uid, source string) *controlstream.Failed {
		t.Helper()
		p := l.pod(uid)
		defer p.Close()
		p.want(1, source)
		m, _ := p.answer(1)
		return m.Failed
	}
	refused := func(l *lab, uid, source string) {
		t.Helper()
		if f := get(l, uid, source); f == nil || f.Kind != controlstream.KindRefused || !strings.Contains(f.Fix, "thaw.dev/allow-source") {
			t.Errorf("%s has %s: %+v", uid, source, f)
		}
	}
	expectAllowed := func(l *lab, uid, source string) {
		t.Helper()
		if f := get(l, uid, source); f != nil {
			t.Errorf("%s has not %s: %+v", uid, source, f)
		}
	}
	expectAllowed(l, podB, modelLocation) // no owners are known
	l.OnUpdate(ofTeams(podA, "a", podB, "b", podC, "none"))
	expectAllowed(l, podA, modelLocation)
	refused(l, podB, modelLocation) // though it is in the store
	refused(l, podB, "mem://models/qwen2")
	expectAllowed(l, podB, "mem://models/qwen")
	refused(l, podC, "mem://models/qwen")

	// A prefetch is refused if its pod may not stage the source.
	for want, team := range []string{"b", "a"} { // prefetches expected after each: b's is refused
		l.OnUpdate(controlstream.Update{Prefetch: []functions.LoadRequest{{ID: "r" + team, Team: team, Model: "m", Spec: functions.ModelSpec{Source: "mem://models/qwen2"}}}})
		l.mu.Lock()
		n := 0
		l.Daemon.mu.Lock()
		for locationKey := range l.Daemon.prefetches {
			if locationKey == "mem://models/qwen2" {
				n++
			}
		}
		l.Daemon.mu.Unlock()
		l.mu.Unlock()
		if n != want {
			t.Errorf("team %s: %d stagings ahead, want %d", team, n, want)
		}
	}

	// A pod of unknown owner waits for the owners.
	const late = "dddddddd-1111-1111-1111-111111111111"
	p := l.pod(late)
	p.want(1, modelLocation)
	l.OnUpdate(ofTeams(podB, "b"))
	l.OnUpdate(ofTeams(podB, "b", late, "b"))
	if m, _ := p.answer(1); m.Failed == nil {
		t.Errorf("%+v", m)
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, ownersFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}

	// The next loader uses the stored lists.
	l = restart(t, dir, twoModels)
	refused(l, podB, modelLocation)
	l.OnUpdate(controlstream.Update{Owners: &controlstream.Owners{Said: true}})
	expectAllowed(l, podB, modelLocation)
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}

	// An invalid file allows nothing until the controller has sent the owners.
	if err := os.WriteFile(filepath.Join(dir, ownersFile), []byte(`{"Allow`), 0o600); err != nil {
		t.Fatal(err)
	}
	l = restart(t, dir, twoModels)
	p = l.pod(podB)
	p.want(1, modelLocation)
	l.OnUpdate(ofTeams(podA, "a"))
	l.OnUpdate(ofTeams(podB, "b"))
	if m, _ := p.answer(1); m.Failed == nil || !strings.Contains(m.Failed.Fix, "allow-source") {
		t.Errorf("%+v", m)
	}
}
