package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
func (s *forkServers) Run(ctx context.Context) {
	defer func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.running.Wait()
	}()
	t := time.NewTicker(forkserver.CheckEvery)
	defer t.Stop()
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	for {
		if d := s.startRequested(ctx); d > 0 {
			retry.Reset(d)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.checkParents(ctx)
		case <-s.wake:
			s.checkParents(ctx)
		case <-retry.C:
		}
	}
}

// startRequested starts the requested parents that may start now. It returns when to try
// the others again; 0 is never.
func (s *forkServers) startRequested(ctx context.Context) (again time.Duration) {
	used := s.o.Used()
	s.mu.Lock()
	var now, look []*parentSpec
	for program, spec := range s.bytecodeChecks {
		if spec != nil {
			look = append(look, spec)
			s.bytecodeChecks[program] = nil
		}
	}
	for id, spec := range s.requested {
		if spec.starting {
			continue
		}
		if wait := time.Until(s.backoff[id].until); wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		if reason := s.refuseReasonLocked(spec, used); reason != "" {
			delete(s.requested, id)
			s.backoff[id] = retryState{until: time.Now().Add(forkserver.CheckEvery), reason: reason}
			close(spec.ready)
			continue
		}
		// It stays among the requested until it is among the parents.
		spec.starting = true
		now = append(now, spec)
		if _, known := s.bytecodeChecks[spec.env.Program]; !known {
			s.bytecodeChecks[spec.env.Program] = nil
			look = append(look, spec)
		}
	}
	s.mu.Unlock()
	for _, spec := range look {
		s.checkBytecode(ctx, spec)
	}
	for _, spec := range now {
		err := s.start(ctx, spec)
		s.mu.Lock()
		delete(s.requested, spec.id)
		s.mu.Unlock()
		if err != nil {
			close(spec.ready)
			if ctx.Err() == nil {
				s.log.Warn("no warm interpreter", "program", spec.env.Program, "error", err)
				s.recordFailure(spec.id, err.Error())
			}
		}
	}
	return again
}

// refuseReasonLocked is why there is no memory or place for another parent; "" if there
// is. mu must be held.
func (s *forkServers) refuseReasonLocked(spec *parentSpec, used functions.Bytes) string {
	need, have := defaultParentMemory, functions.Bytes(0)
	for _, p := range s.parents {
		have += p.bytes
		if _, ready := p.Facts(); ready && p.row == spec.row {
			need = p.bytes
		}
	}
	if s.o.Mode == WarmAuto {
		if total := s.o.Memory; have+need > total/autoShare {
			return fmt.Sprintf("no warm interpreter: %s are more than an eighth of the node's %s (--warm on has one all the same)", have+need, total)
		}
		if used+have+need > s.o.Memory {
			return fmt.Sprintf("no memory for a warm interpreter: %s of %s are taken", used+have, s.o.Memory)
		}
	}
	if len(s.parents) < maxParents {
		return ""
	}
	var oldest *parent
	for _, p := range s.parents {
		if _, ready := p.Facts(); ready && p.ending == "" && time.Since(p.used) > parentIdleAfter &&
			(oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return fmt.Sprintf("%d warm interpreters are in use, none with these variables", len(s.parents))
	}
	s.requestEndLocked(oldest, "another warm interpreter needs its place")
	return "another warm interpreter makes room"
}

// newParent is a parent whose process is not known yet.
func newParent(dir string, spec parentSpec) *parent {
	socket := filepath.Join(dir, spec.id+".sock")
	return &parent{
		parentSpec: spec, socket: socket, since: time.Now(), used: time.Now(), bytes: defaultParentMemory,
		Parent: forkserver.NewParent(forkserver.ParentOptions{Env: spec.env, Facts: forkserver.SocketFacts(socket),
			MaxUnanswered: maxUnanswered}),
	}
}

func (s *forkServers) start(ctx context.Context, spec *parentSpec) error {
	client, err := s.o.Keeper()
	if err != nil {
		return err
	}
	script, err := forkserver.InstallScript(s.o.Dir)
	if err != nil {
		return err
	}
	p := newParent(s.o.Dir, *spec)
	os.Remove(p.socket)
	meta, err := json.Marshal(parentMeta{Warm: spec.row, Program: spec.env.Program, Environ: spec.environ, Script: script,
		Print: forkserver.Fingerprint(spec.env.InstallFiles())})
	if err != nil {
		return err
	}
	sctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	child, err := client.Spawn(sctx,
		supervisor.Process{ID: spec.id, Argv: spec.env.ParentArgv(script, p.socket, spec.row), Env: spec.environ, Dir: s.o.Dir, Meta: meta})
	if err != nil {
		return err
	}
	p.child = child
	s.log.Info("warm interpreter starts", "program", spec.env.Program, "pid", child.PID)
	s.watch(ctx, p)
	return nil
}

// adopt watches a parent that an earlier agent left running, or ends it.
func (s *forkServers) adopt(ctx context.Context, client *supervisor.Client, r supervisor.Running) {
	kill := func(reason string) {
		s.log.Info("ending a warm interpreter of an earlier agent", "process", r.ID, "why", reason)
		client.Kill(ctx, r.ID)
	}
	var m parentMeta
	if json.Unmarshal(r.Meta, &m) != nil || m.Warm == "" {
		kill("it has no metadata")
		return
	}
	script, err := forkserver.InstallScript(s.o.Dir)
	if err != nil || m.Script != script || s.disabledReason() != "" {
		kill("it is of another version, or warm interpreters are off")
		return
	}
	env, err := forkserver.FindEnvironment(m.Program)
	if err != nil || forkserver.Fingerprint(env.InstallFiles()) != m.Print {
		kill("its program has changed")
		return
	}
	p := newParent(s.o.Dir, parentSpec{id: r.ID, row: m.Warm, env: env, environ: m.Environ, ready: make(chan struct{})})
	p.since, p.child = r.Started, client.Follow(r)
	s.log.Info("adopted", "process", r.ID, "pid", r.PID)
	s.watch(ctx, p)
}

// watch enters a parent and watches it until it ends.
func (s *forkServers) watch(ctx context.Context, p *parent) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		close(p.ready)
		return
	}
	s.parents[p.id] = p
	s.running.Add(1)
	s.mu.Unlock()
	s.o.Changed()
	go func() {
		defer s.running.Done()
		if exit := s.awaitParent(ctx, p); exit != nil {
			s.onExit(ctx, p, *exit)
			return
		}
		select {
		case e := <-p.child.Exited:
			s.onExit(ctx, p, e)
		case <-ctx.Done():
		}
	}()
}

// awaitParent waits until a parent is ready, or requests its end. It returns the end
// of the process if that came first.
func (s *forkServers) awaitParent(ctx context.Context, p *parent) *supervisor.Exit {
	defer func() {
		close(p.ready)
		if ctx.Err() == nil {
			s.o.Changed()
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
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		p.bytes = functions.Bytes(f.Bytes)
		delete(s.backoff, p.id)
		s.log.Info("warm interpreter ready", "program", p.env.Program, "version", f.Version, "pid", f.PID,
			"imports", time.Duration(f.Imports*float64(time.Second)).Round(10*time.Millisecond), "memory", p.bytes, "missing", f.Missing)
	case ctx.Err() == nil:
		s.requestEndLocked(p, err.Error())
	}
	return exit
}

// onExit records the end of a parent and requests it again, with a delay. Engines that it
// forked live on.
func (s *forkServers) onExit(ctx context.Context, p *parent, e supervisor.Exit) {
	os.Remove(p.socket)
	if client, err := s.o.Keeper(); err == nil {
		fctx, cancel := context.WithTimeout(ctx, time.Second)
		client.Forget(fctx, p.id)
		cancel()
	}
	s.mu.Lock()
	delete(s.parents, p.id)
	_, again := p.Facts()
	reason := p.ending
	s.mu.Unlock()
	switch {
	case reason == "":
		reason = "the warm interpreter ended: " + e.String()
		s.log.Warn("a warm interpreter ended", "program", p.env.Program, "how", e.String())
	case !again:
		s.log.Warn("no warm interpreter", "program", p.env.Program, "error", reason)
	default:
		s.log.Info("a warm interpreter was ended", "program", p.env.Program, "why", reason)
	}
	s.recordFailure(p.id, reason)
	if again && reason != "another warm interpreter needs its place" {
		spec := p.parentSpec
		spec.ready, spec.starting = make(chan struct{}), false
		s.requestParent(&spec)
	}
	s.o.Changed()
}

// recordFailure delays the next start of a parent, longer after each failure.
func (s *forkServers) recordFailure(id, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.backoff[id]
	b.reason = reason
	b.until = time.Now().Add(min(minRestartDelay<<min(b.tries, 10), maxRestartDelay))
	b.tries++
	s.backoff[id] = b
	if len(s.backoff) > 64 { // of removed models
		for old := range s.backoff {
			if old != id {
				delete(s.backoff, old)
				break
			}
		}
	}
}

// requestEndLocked has Run end a parent. mu must be held.
func (s *forkServers) requestEndLocked(p *parent, reason string) {
	if p.ending != "" {
		return
	}
	p.ending = reason
	s.wake.Set()
}

// checkParents asks the parents for their facts and ends those to be replaced.
func (s *forkServers) checkParents(ctx context.Context) {
	s.evictIfMemoryShort()
	s.mu.Lock()
	list := slices.Collect(maps.Values(s.parents))
	s.mu.Unlock()
	for _, p := range list {
		was, ready := p.Facts()
		s.mu.Lock()
		ending := p.ending
		s.mu.Unlock()
		if ready && ending == "" {
			ending = p.Check(ctx)
			if ctx.Err() != nil {
				return
			}
			if now, _ := p.Facts(); now.Forks != was.Forks {
				s.o.Changed()
			}
			if ending != "" {
				s.mu.Lock()
				s.requestEndLocked(p, ending)
				s.mu.Unlock()
			}
		}
		if ending != "" {
			s.kill(ctx, p.id)
		}
	}
}

func (s *forkServers) kill(ctx context.Context, id string) {
	client, err := s.o.Keeper()
	if err != nil {
		return
	}
	kctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client.Signal(kctx, id, syscall.SIGKILL)
}

// checkBytecode counts the compiled modules of an environment, and compiles them or logs
// the command that does.
func (s *forkServers) checkBytecode(ctx context.Context, spec *parentSpec) {
	have, of := spec.env.Bytecode(forkserver.SamplePackages(spec.row)...)
	if of == 0 || have*10 >= of*9 {
		return
	}
	command := strings.Join(spec.env.CompileCommand(), " ")
	if !spec.env.Writable() {
		s.log.Warn("most of an engine's modules are not compiled and the folder cannot be written: each start takes minutes", "program",
			spec.env.Program,
			"compiled", have, "of", of, "make it with", command)
		return
	}
	client, err := s.o.Keeper()
	if err != nil {
		return
	}
	s.log.Warn("most of an engine's modules are not compiled; compiling them now, starts take minutes until that is done", "program",
		spec.env.Program, "compiled", have, "of", of, "with", command)
	s.running.Go(func() { s.compileBytecode(ctx, client, spec, of) })
}

// compileBytecode compiles an environment's modules in a process of the supervisor.
func (s *forkServers) compileBytecode(ctx context.Context, client *supervisor.Client, spec *parentSpec, of int) {
	ctx, cancel := context.WithTimeout(ctx, compileTimeout)
	defer cancel()
	id := parentPrefix + "bytecode-" + strings.TrimPrefix(spec.id, parentPrefix)
	began := time.Now()
	child, err := client.Spawn(ctx, supervisor.Process{ID: id, Argv: spec.env.CompileCommand(), Env: spec.environ})
	if err != nil {
		s.log.Warn("bytecode", "error", err)
		return
	}
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case e := <-child.Exited:
			have, of := spec.env.Bytecode(forkserver.SamplePackages(spec.row)...)
			s.log.Info("bytecode compiled", "program", spec.env.Program, "compiled", have, "of", of, "took", time.Since(began).Round(time.Second),
				"exit", e.String())
			return
		case <-ticker.C:
			have, _ := spec.env.Bytecode(forkserver.SamplePackages(spec.row)...)
			s.log.Info("compiling bytecode", "program", spec.env.Program, "compiled", have, "of", of)
		case <-client.Done():
			return
		case <-ctx.Done():
			s.log.Warn("bytecode was not compiled", "program", spec.env.Program, "compiled in", time.Since(began).Round(time.Second))
			s.kill(context.WithoutCancel(ctx), id)
			return
		}
	}
}
