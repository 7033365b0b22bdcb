package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// Run starts and checks the parents until ctx ends. Their processes are the supervisor's,
// which ends them or leaves them as it does engines.
func (h *forkServers) Run(ctx context.Context) {
	defer func() {
		h.mu.Lock()
		h.closed = true
		h.mu.Unlock()
		h.running.Wait()
	}()
	t := time.NewTicker(forkserver.CheckEvery)
	defer t.Stop()
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	for {
		if d := h.startRequested(ctx); d > 0 {
			retry.Reset(d)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			h.checkParents(ctx)
		case <-h.wake:
			h.checkParents(ctx)
		case <-retry.C:
		}
	}
}

// startRequested starts the requested parents that may start now. It returns when to try
// the others again; 0 is never.
func (h *forkServers) startRequested(ctx context.Context) (again time.Duration) {
	used := h.o.Used()
	h.mu.Lock()
	var now, look []*parentSpec
	for program, k := range h.bytecodeChecks {
		if k != nil {
			look = append(look, k)
			h.bytecodeChecks[program] = nil
		}
	}
	for id, k := range h.requested {
		if k.starting {
			continue
		}
		if wait := time.Until(h.backoff[id].until); wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		if reason := h.refuseReasonLocked(k, used); reason != "" {
			delete(h.requested, id)
			h.backoff[id] = retryState{until: time.Now().Add(forkserver.CheckEvery), reason: reason}
			close(k.ready)
			continue
		}
		// It stays among the requested until it is among the parents.
		k.starting = true
		now = append(now, k)
		if _, known := h.bytecodeChecks[k.env.Program]; !known {
			h.bytecodeChecks[k.env.Program] = nil
			look = append(look, k)
		}
	}
	h.mu.Unlock()
	for _, k := range look {
		h.checkBytecode(ctx, k)
	}
	for _, k := range now {
		err := h.start(ctx, k)
		h.mu.Lock()
		delete(h.requested, k.id)
		h.mu.Unlock()
		if err != nil {
			close(k.ready)
			if ctx.Err() == nil {
				h.log.Warn("no warm interpreter", "program", k.env.Program, "error", err)
				h.recordFailure(k.id, err.Error())
			}
		}
	}
	return again
}

// refuseReasonLocked is why there is no memory or place for another parent; "" if there
// is. mu must be held.
func (h *forkServers) refuseReasonLocked(k *parentSpec, used functions.Bytes) string {
	need, have := defaultParentMemory, functions.Bytes(0)
	for _, p := range h.parents {
		have += p.bytes
		if _, ready := p.Facts(); ready && p.row == k.row {
			need = p.bytes
		}
	}
	if h.o.Mode == WarmAuto {
		if total := h.o.Memory; have+need > total/autoShare {
			return fmt.Sprintf("no warm interpreter: %s are more than an eighth of the node's %s (--warm on has one all the same)", have+need, total)
		}
		if used+have+need > h.o.Memory {
			return fmt.Sprintf("no memory for a warm interpreter: %s of %s are taken", used+have, h.o.Memory)
		}
	}
	if len(h.parents) < maxParents {
		return ""
	}
	var oldest *parent
	for _, p := range h.parents {
		if _, ready := p.Facts(); ready && p.ending == "" && time.Since(p.used) > parentIdleAfter && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return fmt.Sprintf("%d warm interpreters are in use, none with these variables", len(h.parents))
	}
	h.requestEndLocked(oldest, "another warm interpreter needs its place")
	return "another warm interpreter makes room"
}

// newParent is a parent whose process is not known yet.
func newParent(dir string, k parentSpec) *parent {
	socket := filepath.Join(dir, k.id+".sock")
	return &parent{
		parentSpec: k, socket: socket, since: time.Now(), used: time.Now(), bytes: defaultParentMemory,
		Parent: forkserver.NewParent(forkserver.ParentOptions{Env: k.env, Facts: forkserver.SocketFacts(socket), MaxUnanswered: maxUnanswered}),
	}
}

// start has the supervisor start a parent.
func (h *forkServers) start(ctx context.Context, k *parentSpec) error {
	client, err := h.o.Keeper()
	if err != nil {
		return err
	}
	script, err := forkserver.InstallScript(h.o.Dir)
	if err != nil {
		return err
	}
	p := newParent(h.o.Dir, *k)
	os.Remove(p.socket)
	meta, err := json.Marshal(parentMeta{Warm: k.row, Program: k.env.Program, Environ: k.environ, Script: script, Print: forkserver.Fingerprint(k.env.InstallFiles())})
	if err != nil {
		return err
	}
	sctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	child, err := client.Spawn(sctx, supervisor.Process{ID: k.id, Argv: k.env.ParentArgv(script, p.socket, k.row), Env: k.environ, Dir: h.o.Dir, Meta: meta})
	if err != nil {
		return err
	}
	p.child = child
	h.log.Info("warm interpreter starts", "program", k.env.Program, "pid", child.PID)
	h.watch(ctx, p)
	return nil
}

// adopt watches a parent that an earlier agent left running, or ends it.
func (h *forkServers) adopt(ctx context.Context, client *supervisor.Client, r supervisor.Running) {
	kill := func(reason string) {
		h.log.Info("ending a warm interpreter of an earlier agent", "process", r.ID, "why", reason)
		client.Kill(ctx, r.ID)
	}
	var m parentMeta
	if json.Unmarshal(r.Meta, &m) != nil || m.Warm == "" {
		kill("it has no metadata")
		return
	}
	script, err := forkserver.InstallScript(h.o.Dir)
	if err != nil || m.Script != script || h.disabledReason() != "" {
		kill("it is of another version, or warm interpreters are off")
		return
	}
	env, err := forkserver.FindEnvironment(m.Program)
	if err != nil || forkserver.Fingerprint(env.InstallFiles()) != m.Print {
		kill("its program has changed")
		return
	}
	p := newParent(h.o.Dir, parentSpec{id: r.ID, row: m.Warm, env: env, environ: m.Environ, ready: make(chan struct{})})
	p.since, p.child = r.Started, client.Follow(r)
	h.log.Info("adopted", "process", r.ID, "pid", r.PID)
	h.watch(ctx, p)
}

// isParentProcess reports whether a process of the supervisor is a warm interpreter.
func isParentProcess(id string) bool { return strings.HasPrefix(id, parentPrefix) }

// watch enters a parent and watches it until it ends.
func (h *forkServers) watch(ctx context.Context, p *parent) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		close(p.ready)
		return
	}
	h.parents[p.id] = p
	h.running.Add(1)
	h.mu.Unlock()
	h.o.Changed()
	go func() {
		defer h.running.Done()
		if exit := h.awaitParent(ctx, p); exit != nil {
			h.onExit(ctx, p, *exit)
			return
		}
		select {
		case e := <-p.child.Exited:
			h.onExit(ctx, p, e)
		case <-ctx.Done():
		}
	}()
}

// awaitParent waits until a parent is ready, or requests its end. It returns the end
// of the process if that came first.
func (h *forkServers) awaitParent(ctx context.Context, p *parent) *supervisor.Exit {
	defer func() {
		close(p.ready)
		if ctx.Err() == nil {
			h.o.Changed()
		}
	}()
	left := max(0, forkserver.ImportTimeout-time.Since(p.since))
	waiting, cancel := context.WithTimeoutCause(ctx, left, fmt.Errorf("not ready within %s", forkserver.ImportTimeout))
	defer cancel()
	exit, err := forkserver.Await(waiting, p.Parent, p.child.Exited)
	if exit != nil {
		err = fmt.Errorf("the warm interpreter ended: %s", engine.RootCause(exit.Tail, exit.String()))
	}
	f, _ := p.Facts()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		p.bytes = functions.Bytes(f.Bytes)
		delete(h.backoff, p.id)
		h.log.Info("warm interpreter ready", "program", p.env.Program, "version", f.Version, "pid", f.PID,
			"imports", time.Duration(f.Imports*float64(time.Second)).Round(10*time.Millisecond), "memory", p.bytes, "missing", f.Missing)
	case ctx.Err() == nil:
		h.requestEndLocked(p, err.Error())
	}
	return exit
}

// onExit records the end of a parent and requests it again, with a delay. Engines that it
// forked live on.
func (h *forkServers) onExit(ctx context.Context, p *parent, e supervisor.Exit) {
	os.Remove(p.socket)
	if client, err := h.o.Keeper(); err == nil {
		fctx, cancel := context.WithTimeout(ctx, time.Second)
		client.Forget(fctx, p.id)
		cancel()
	}
	h.mu.Lock()
	delete(h.parents, p.id)
	_, again := p.Facts()
	reason := p.ending
	h.mu.Unlock()
	switch {
	case reason == "":
		reason = "the warm interpreter ended: " + e.String()
		h.log.Warn("a warm interpreter ended", "program", p.env.Program, "how", e.String())
	case !again:
		h.log.Warn("no warm interpreter", "program", p.env.Program, "error", reason)
	default:
		h.log.Info("a warm interpreter was ended", "program", p.env.Program, "why", reason)
	}
	h.recordFailure(p.id, reason)
	if again && reason != "another warm interpreter needs its place" {
		k := p.parentSpec
		k.ready, k.starting = make(chan struct{}), false
		h.requestParent(&k)
	}
	h.o.Changed()
}

// recordFailure delays the next start of a parent, longer after each failure.
func (h *forkServers) recordFailure(id, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.backoff[id]
	b.reason = reason
	b.until = time.Now().Add(min(minRestartDelay<<min(b.tries, 10), maxRestartDelay))
	b.tries++
	h.backoff[id] = b
	if len(h.backoff) > 64 { // of removed models
		for old := range h.backoff {
			if old != id {
				delete(h.backoff, old)
				break
			}
		}
	}
}

// requestEndLocked has Run end a parent. mu must be held.
func (h *forkServers) requestEndLocked(p *parent, reason string) {
	if p.ending != "" {
		return
	}
	p.ending = reason
	h.wake.Set()
}

// checkParents asks the parents for their facts and ends those to be replaced.
func (h *forkServers) checkParents(ctx context.Context) {
	h.evictIfMemoryShort()
	h.mu.Lock()
	list := make([]*parent, 0, len(h.parents))
	for _, p := range h.parents {
		list = append(list, p)
	}
	h.mu.Unlock()
	for _, p := range list {
		was, ready := p.Facts()
		h.mu.Lock()
		ending := p.ending
		h.mu.Unlock()
		if ready && ending == "" {
			ending = p.Check(ctx)
			if ctx.Err() != nil {
				return
			}
			if now, _ := p.Facts(); now.Forks != was.Forks {
				h.o.Changed()
			}
			if ending != "" {
				h.mu.Lock()
				h.requestEndLocked(p, ending)
				h.mu.Unlock()
			}
		}
		if ending != "" {
			h.kill(ctx, p.id)
		}
	}
}

func (h *forkServers) kill(ctx context.Context, id string) {
	client, err := h.o.Keeper()
	if err != nil {
		return
	}
	kctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client.Signal(kctx, id, syscall.SIGKILL)
}
