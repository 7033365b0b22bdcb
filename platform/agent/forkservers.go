package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// WarmMode says whether a node keeps warm interpreters.
type WarmMode string

// The modes. Auto keeps one where the node's memory is much larger than it.
const (
	WarmOff  WarmMode = "off"
	WarmOn   WarmMode = "on"
	WarmAuto WarmMode = "auto"
)

const (
	// defaultParentMemory is what a parent is taken to need before one has been seen.
	defaultParentMemory = functions.Bytes(640 << 20)
	// autoShare: automatic means that a parent takes at most this part of the
	// memory that replicas may reserve.
	autoShare = 8
	// maxParents parents at once: environments, or variables, may differ.
	maxParents = 2
	// maxForks a parent is replaced after: a bound on whatever wears out.
	maxForks = 500
	// importTimeout bounds the imports of a parent.
	importTimeout = 5 * time.Minute
	// checkEvery is how often parents are asked how they are, within factsTimeout;
	// one that does not answer so often in a row is ended.
	checkEvery, factsTimeout, maxUnanswered = 10 * time.Second, 2 * time.Second, 3
	// parentIdleAfter: one that has forked nothing for so long makes room for another.
	parentIdleAfter = 15 * time.Minute
	// A parent that ended is started again after one second, then two, …
	minRestartDelay, maxRestartDelay = time.Second, 5 * time.Minute
	// compileTimeout bounds the making of bytecode.
	compileTimeout = 20 * time.Minute

	parentPrefix = "warm-"
)

// forkServers keeps the warm interpreters of a node: one per environment that models
// of it need, started when one is first wanted (or known to be), watched, and
// replaced when it has died, worn out, or does not match what is installed.
// Replicas ask it which parent forks their engine; it never makes them wait.
type forkServers struct {
	o   forkServersOptions
	log *slog.Logger

	wake chan struct{}

	mu             sync.Mutex
	parents        map[string]*parent     // by process id
	requested      map[string]*parentSpec // by id
	bytecodeChecks map[string]*parentSpec // environments, by program; nil once their bytecode was looked at
	backoff        map[string]retryState  // by id
	closed         bool
	running        sync.WaitGroup
}

type forkServersOptions struct {
	Mode   WarmMode
	Dir    string          // for sockets and the parents' program
	Memory functions.Bytes // of the node, for replicas
	Used   func() functions.Bytes
	Keeper func() (*supervisor.Client, error)
	// Changed is called when what parents says has changed; no lock is held.
	Changed func()
	Log     *slog.Logger
}

// parentSpec is a parent that is to be.
type parentSpec struct {
	id       string
	row      string
	env      forkserver.Environment
	environ  []string
	settled  chan struct{} // closed when it is ready, or will not be
	starting bool          // it is being started
}

// parent is one that runs.
type parent struct {
	parentSpec
	socket      string
	fingerprint string // of its files, when it began
	since       time.Time
	child       *supervisor.Child

	// Under the hearth's lock.
	ready      bool
	facts      forkserver.Facts
	bytes      functions.Bytes
	used       time.Time // last fork
	unanswered int
	ending     string // why it is being ended
}

type retryState struct {
	tries int
	until time.Time
	why   string
}

// parentMeta are the notes kept with a parent's process.
type parentMeta struct {
	Warm    string   `json:"warm"` // its row
	Program string   `json:"program"`
	Environ []string `json:"environ"`
	Script  string   `json:"script"`
	Print   string   `json:"print"`
}

func newForkServers(o forkServersOptions) *forkServers {
	if o.Mode == "" {
		o.Mode = WarmOff
	}
	return &forkServers{
		o: o, log: o.Log, wake: make(chan struct{}, 1), parents: map[string]*parent{}, requested: map[string]*parentSpec{},
		bytecodeChecks: map[string]*parentSpec{}, backoff: map[string]retryState{},
	}
}

func (h *forkServers) wakeUp() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// disabledReason says why no parent will be, "" if one may.
func (h *forkServers) disabledReason() string {
	switch {
	case h.o.Mode == WarmOff:
		return "warm interpreters are off"
	case !forkserver.Supported:
		return "warm interpreters need Linux"
	}
	return ""
}

// specFor makes what an engine's parent would be of its command.
func (h *forkServers) specFor(cmd engine.Command) (*parentSpec, string) {
	row := forkserver.ImportList(string(cmd.Engine))
	if row == "" || len(cmd.Argv) == 0 {
		return nil, ""
	}
	env, err := forkserver.FindEnvironment(cmd.Argv[0])
	if err != nil {
		return nil, err.Error()
	}
	k := &parentSpec{row: row, env: env, environ: forkserver.ParentEnviron(engine.Environ(cmd.Env)), settled: make(chan struct{})}
	slices.Sort(k.environ)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{row, env.Program}, k.environ...), "\x00")))
	k.id = parentPrefix + row + "-" + hex.EncodeToString(sum[:5])
	return k, ""
}

// ForkSocket names the socket of the parent that forks an engine, or why none does.
// Without one it begins to make one, for the next start. It does not wait.
func (h *forkServers) ForkSocket(cmd engine.Command) (via, note string) {
	k, note := h.specFor(cmd)
	if k == nil {
		return "", note
	}
	if why := h.disabledReason(); why != "" {
		if h.o.Mode != WarmOff {
			note = why
		}
		h.queueBytecodeCheck(k)
		return "", note
	}
	h.mu.Lock()
	p, note := h.matchingParentLocked(k, cmd.Env)
	if p != nil {
		p.used = time.Now()
		via = p.socket
	}
	h.mu.Unlock()
	if p == nil {
		h.requestParent(k)
	}
	return via, note
}

// matchingParentLocked is the parent that forks an engine with this environment; the lock is held.
func (h *forkServers) matchingParentLocked(k *parentSpec, env []string) (p *parent, note string) {
	note = "no warm interpreter yet"
	if b, ok := h.backoff[k.id]; ok && b.why != "" {
		note = b.why
	}
	for _, p := range h.parents {
		if p.row != k.row || p.env.Program != k.env.Program {
			continue
		}
		if p.ending != "" {
			if p.id == k.id {
				note = p.ending
			}
			continue
		}
		if !p.ready {
			if p.id == k.id {
				note = "the warm interpreter is not ready yet"
			}
			continue
		}
		if p.fingerprint != forkserver.Fingerprint(p.files()) {
			h.requestEndLocked(p, "its files have changed")
			note = "the installation has changed since the warm interpreter began"
			continue
		}
		if v := p.facts.DifferingVariable(env); v != "" {
			note = "the warm interpreter was started with another " + v
			continue
		}
		return p, ""
	}
	return nil, note
}

// files that tell whether a parent is still what is installed.
func (p *parent) files() []string { return append(p.env.InstallFiles(), p.facts.Files...) }

// requestParent has a parent made, if there is none and there may be. It gives the
// channel that is closed when it is ready, or will not be.
func (h *forkServers) requestParent(k *parentSpec) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.parents[k.id] != nil:
		return h.parents[k.id].settled
	case h.requested[k.id] != nil:
		return h.requested[k.id].settled
	case h.closed || len(h.requested) >= 2*maxParents:
		return nil
	}
	h.requested[k.id] = k
	h.wakeUp()
	return k.settled
}

// queueBytecodeCheck has the bytecode of an environment looked at, once.
func (h *forkServers) queueBytecodeCheck(k *parentSpec) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.bytecodeChecks[k.env.Program]; !known {
		h.bytecodeChecks[k.env.Program] = k
		h.wakeUp()
	}
}

// Prepare begins what starts of these models will want, before any is asked for.
func (h *forkServers) Prepare(cmd engine.Command) {
	k, _ := h.specFor(cmd)
	if k == nil {
		return
	}
	if h.disabledReason() != "" {
		h.queueBytecodeCheck(k)
		return
	}
	h.mu.Lock()
	for _, p := range h.parents {
		if p.id == k.id || p.ready && p.row == k.row && p.env.Program == k.env.Program && p.facts.DifferingVariable(cmd.Env) == "" {
			h.mu.Unlock()
			return
		}
	}
	h.mu.Unlock()
	h.requestParent(k)
}

// AwaitReady begins the parent of a command and gives a channel that is closed when
// it is ready, or will not be; nil where there is nothing to wait for. The
// imports that it does once a plain start does twice, so that to wait for them is
// the quicker way even for the first.
func (h *forkServers) AwaitReady(cmd engine.Command) <-chan struct{} {
	if h.disabledReason() != "" {
		return nil
	}
	k, _ := h.specFor(cmd)
	if k == nil {
		return nil
	}
	h.mu.Lock()
	p, _ := h.matchingParentLocked(k, cmd.Env)
	failed := time.Now().Before(h.backoff[k.id].until)
	h.mu.Unlock()
	if p != nil || failed {
		return nil
	}
	return h.requestParent(k)
}

// Suspect is told that a parent did not fork.
func (h *forkServers) Suspect(socket string) {
	h.mu.Lock()
	for _, p := range h.parents {
		if p.socket == socket {
			p.unanswered = max(p.unanswered, maxUnanswered-1) // if it does not answer now either, it goes
		}
	}
	h.mu.Unlock()
	h.wakeUp()
}

// evictIfMemoryShort ends the parent that forked longest ago if replicas have been given
// the memory it takes. Those that are to be kept all the same are taken off what
// the node offers (WarmParent.Kept).
func (h *forkServers) evictIfMemoryShort() {
	if h.o.Mode != WarmAuto {
		return
	}
	used := h.o.Used()
	h.mu.Lock()
	defer h.mu.Unlock()
	var oldest *parent
	for _, p := range h.parents {
		if p.ending != "" {
			continue
		}
		used += p.bytes
		if p.ready && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest != nil && used > h.o.Memory {
		h.requestEndLocked(oldest, "replicas have its memory")
	}
}

// Memory that parents take, and what they are.
func (h *forkServers) Parents() (list []functions.WarmParent, bytes functions.Bytes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.parents {
		w := functions.WarmParent{Engine: p.row, Program: p.env.Program, State: "starting", Memory: p.bytes, Kept: h.o.Mode == WarmOn, Since: p.since}
		switch {
		case p.ending != "":
			w.State, w.Note = "ending", p.ending
		case p.ready:
			w.State, w.Version, w.Python, w.Forks, w.Imports = "ready", p.facts.Version, p.facts.Python, p.facts.Forks, p.facts.Imports
		}
		bytes += p.bytes
		list = append(list, w)
	}
	for id, b := range h.backoff {
		if b.why != "" && h.parents[id] == nil {
			list = append(list, functions.WarmParent{Engine: strings.SplitN(strings.TrimPrefix(id, parentPrefix), "-", 2)[0], State: "failed", Note: b.why, Since: b.until})
		}
	}
	slices.SortFunc(list, func(a, b functions.WarmParent) int {
		return strings.Compare(a.Program+a.State+a.Note, b.Program+b.State+b.Note)
	})
	return list, bytes
}

// Run tends the parents until ctx ends. They are the keeper's: whether they end
// with us is decided where its other processes are.
func (h *forkServers) Run(ctx context.Context) {
	defer func() {
		h.mu.Lock()
		h.closed = true
		h.mu.Unlock()
		h.running.Wait()
	}()
	t := time.NewTicker(checkEvery)
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

// startRequested starts what is wanted and may be; it says when to try again.
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
		if why := h.refuseReasonLocked(k, used); why != "" {
			delete(h.requested, id)
			h.backoff[id] = retryState{until: time.Now().Add(checkEvery), why: why}
			close(k.settled)
			continue
		}
		// It stays among the wanted until it is among the parents.
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
			close(k.settled)
			if ctx.Err() == nil {
				h.log.Warn("no warm interpreter", "program", k.env.Program, "error", err)
				h.recordFailure(k.id, err.Error())
			}
		}
	}
	return again
}

// refuseReasonLocked says why there is none for another parent; the lock is held.
func (h *forkServers) refuseReasonLocked(k *parentSpec, used functions.Bytes) string {
	need, have := defaultParentMemory, functions.Bytes(0)
	for _, p := range h.parents {
		have += p.bytes
		if p.ready && p.row == k.row {
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
		if p.ready && p.ending == "" && time.Since(p.used) > parentIdleAfter && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return fmt.Sprintf("%d warm interpreters are in use, none with these variables", len(h.parents))
	}
	h.requestEndLocked(oldest, "another one wants its place")
	return "another warm interpreter makes room"
}

// start has the keeper run a parent.
func (h *forkServers) start(ctx context.Context, k *parentSpec) error {
	client, err := h.o.Keeper()
	if err != nil {
		return err
	}
	script, err := forkserver.InstallScript(h.o.Dir)
	if err != nil {
		return err
	}
	p := &parent{
		parentSpec: *k, socket: filepath.Join(h.o.Dir, k.id+".sock"), since: time.Now(), used: time.Now(),
		bytes: defaultParentMemory, fingerprint: forkserver.Fingerprint(k.env.InstallFiles()),
	}
	os.Remove(p.socket)
	meta, err := json.Marshal(parentMeta{Warm: k.row, Program: k.env.Program, Environ: k.environ, Script: script, Print: p.fingerprint})
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
	h.log.Info("warm interpreter begins", "program", k.env.Program, "pid", child.PID)
	h.watch(ctx, p)
	return nil
}

// adopt takes a parent that an earlier agent left, or has it ended.
func (h *forkServers) adopt(ctx context.Context, client *supervisor.Client, r supervisor.Running) {
	kill := func(why string) {
		h.log.Info("a warm interpreter of an earlier agent is ended", "process", r.ID, "why", why)
		client.Kill(ctx, r.ID)
	}
	var m parentMeta
	if json.Unmarshal(r.Meta, &m) != nil || m.Warm == "" {
		kill("it has no notes")
		return
	}
	script, err := forkserver.InstallScript(h.o.Dir)
	if err != nil || m.Script != script || h.disabledReason() != "" {
		kill("it is of another version, or none is wanted")
		return
	}
	env, err := forkserver.FindEnvironment(m.Program)
	if err != nil || forkserver.Fingerprint(env.InstallFiles()) != m.Print {
		kill("its program has changed")
		return
	}
	p := &parent{
		parentSpec: parentSpec{id: r.ID, row: m.Warm, env: env, environ: m.Environ, settled: make(chan struct{})}, socket: filepath.Join(h.o.Dir, r.ID+".sock"),
		since: r.Started, used: time.Now(), bytes: defaultParentMemory, child: client.Follow(r),
	}
	h.log.Info("adopted", "process", r.ID, "pid", r.PID)
	h.watch(ctx, p)
}

// isParentProcess reports whether a process of the keeper is one of the hearth's.
func isParentProcess(id string) bool { return strings.HasPrefix(id, parentPrefix) }

// watch enters a parent and watches it to its end.
func (h *forkServers) watch(ctx context.Context, p *parent) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		close(p.settled)
		return
	}
	h.parents[p.id] = p
	h.running.Add(1)
	h.mu.Unlock()
	h.o.Changed()
	go func() {
		defer h.running.Done()
		if err := h.awaitParent(ctx, p); err != nil {
			if ctx.Err() != nil {
				close(p.settled)
				return
			}
			h.mu.Lock()
			h.requestEndLocked(p, err.Error())
			h.mu.Unlock()
		}
		close(p.settled)
		h.o.Changed()
		select {
		case e := <-p.child.Exited:
			h.onExit(ctx, p, e)
		case <-ctx.Done():
		}
	}()
}

// awaitParent waits until a parent answers.
func (h *forkServers) awaitParent(ctx context.Context, p *parent) error {
	ctx, cancel := context.WithTimeoutCause(ctx, importTimeout-min(time.Since(p.since), importTimeout), fmt.Errorf("not ready within %s", importTimeout))
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if _, err := os.Stat(p.socket); err == nil {
			f, err := h.facts(ctx, p)
			if err == nil {
				if why := f.Unusable(); why != "" {
					return errors.New(why)
				}
				h.mu.Lock()
				p.facts, p.bytes, p.ready = f, functions.Bytes(f.Bytes), true
				p.fingerprint = forkserver.Fingerprint(p.files())
				delete(h.backoff, p.id)
				h.mu.Unlock()
				h.log.Info("warm interpreter ready", "program", p.env.Program, "version", f.Version, "pid", f.PID,
					"imports", time.Duration(f.Imports*float64(time.Second)).Round(10*time.Millisecond), "memory", p.bytes, "missing", f.Missing)
				return nil
			}
		}
		select {
		case <-poll.C:
		case e := <-p.child.Exited:
			// For the one who waits for the end.
			again, exit := supervisor.NewChild(p.child.ID, p.child.PID, p.child.Log)
			exit(e)
			p.child = again
			return fmt.Errorf("the warm interpreter ended: %s", engine.RootCause(e.Tail, e.String()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *forkServers) facts(ctx context.Context, p *parent) (forkserver.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, factsTimeout)
	defer cancel()
	return forkserver.AskFacts(ctx, p.socket)
}

// onExit is the end of a parent. It is wanted again, after a while; its engines
// live on.
func (h *forkServers) onExit(ctx context.Context, p *parent, e supervisor.Exit) {
	os.Remove(p.socket)
	if client, err := h.o.Keeper(); err == nil {
		fctx, cancel := context.WithTimeout(ctx, time.Second)
		client.Forget(fctx, p.id)
		cancel()
	}
	h.mu.Lock()
	delete(h.parents, p.id)
	again := p.ready
	why := p.ending
	h.mu.Unlock()
	switch {
	case why == "":
		why = "the warm interpreter ended: " + e.String()
		h.log.Warn("a warm interpreter ended", "program", p.env.Program, "how", e.String())
	case !again:
		h.log.Warn("no warm interpreter", "program", p.env.Program, "error", why)
	default:
		h.log.Info("a warm interpreter was ended", "program", p.env.Program, "why", why)
	}
	h.recordFailure(p.id, why)
	if again && why != "another one wants its place" {
		k := p.parentSpec
		k.settled, k.starting = make(chan struct{}), false
		h.requestParent(&k)
	}
	h.o.Changed()
}

// recordFailure has the next try wait, longer each time.
func (h *forkServers) recordFailure(id, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.backoff[id]
	b.why = why
	b.until = time.Now().Add(min(minRestartDelay<<min(b.tries, 10), maxRestartDelay))
	b.tries++
	h.backoff[id] = b
	if len(h.backoff) > 64 { // of models long gone
		for old := range h.backoff {
			if old != id {
				delete(h.backoff, old)
				break
			}
		}
	}
}

// requestEndLocked has a parent ended; its end does the rest. The lock is held.
func (h *forkServers) requestEndLocked(p *parent, why string) {
	if p.ending != "" {
		return
	}
	p.ending = why
	h.wakeUp()
}

// checkParents looks after the parents that run.
func (h *forkServers) checkParents(ctx context.Context) {
	h.evictIfMemoryShort()
	h.mu.Lock()
	list := make([]*parent, 0, len(h.parents))
	for _, p := range h.parents {
		list = append(list, p)
	}
	h.mu.Unlock()
	for _, p := range list {
		h.mu.Lock()
		ready, ending, was := p.ready, p.ending, p.facts.Forks
		h.mu.Unlock()
		if ready && ending == "" {
			f, err := h.facts(ctx, p)
			if ctx.Err() != nil {
				return
			}
			h.mu.Lock()
			switch {
			case err != nil:
				if p.unanswered++; p.unanswered >= maxUnanswered {
					h.requestEndLocked(p, "it does not answer")
				}
			case f.Unusable() != "":
				h.requestEndLocked(p, f.Unusable())
			case f.Forks >= maxForks:
				h.requestEndLocked(p, fmt.Sprintf("%d forks are enough", f.Forks))
			case p.fingerprint != forkserver.Fingerprint(p.files()):
				h.requestEndLocked(p, "its files have changed")
			default:
				p.facts, p.unanswered = f, 0
			}
			ending = p.ending
			h.mu.Unlock()
			if err == nil && f.Forks != was {
				h.o.Changed()
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

// checkBytecode sees to the bytecode of an environment: what is missing is made beside
// everything else, or the command that makes it is named.
func (h *forkServers) checkBytecode(ctx context.Context, k *parentSpec) {
	have, of := k.env.Bytecode(forkserver.SamplePackages(k.row)...)
	if of == 0 || have*10 >= of*9 {
		return
	}
	command := strings.Join(k.env.CompileCommand(), " ")
	if !k.env.Writable() {
		h.log.Warn("most of an engine's modules are not compiled: each start takes minutes; the folder is not ours to write", "program", k.env.Program,
			"compiled", have, "of", of, "make it with", command)
		return
	}
	client, err := h.o.Keeper()
	if err != nil {
		return
	}
	h.log.Warn("most of an engine's modules are not compiled; they are now, until then starts take minutes", "program", k.env.Program, "compiled", have, "of", of, "with", command)
	h.running.Go(func() { h.compileBytecode(ctx, client, k, of) })
}

// compileBytecode makes bytecode, in a process of the keeper's like all others.
func (h *forkServers) compileBytecode(ctx context.Context, client *supervisor.Client, k *parentSpec, of int) {
	ctx, cancel := context.WithTimeout(ctx, compileTimeout)
	defer cancel()
	id := parentPrefix + "bytecode-" + strings.TrimPrefix(k.id, parentPrefix)
	began := time.Now()
	child, err := client.Spawn(ctx, supervisor.Process{ID: id, Argv: k.env.CompileCommand(), Env: k.environ})
	if err != nil {
		h.log.Warn("bytecode", "error", err)
		return
	}
	tell := time.NewTicker(15 * time.Second)
	defer tell.Stop()
	for {
		select {
		case e := <-child.Exited:
			have, of := k.env.Bytecode(forkserver.SamplePackages(k.row)...)
			h.log.Info("bytecode made", "program", k.env.Program, "compiled", have, "of", of, "took", time.Since(began).Round(time.Second), "exit", e.String())
			return
		case <-tell.C:
			have, _ := k.env.Bytecode(forkserver.SamplePackages(k.row)...)
			h.log.Info("bytecode is being made", "program", k.env.Program, "compiled", have, "of", of)
		case <-client.Done():
			return
		case <-ctx.Done():
			h.log.Warn("bytecode was not made", "program", k.env.Program, "compiled in", time.Since(began).Round(time.Second))
			h.kill(context.WithoutCancel(ctx), id)
			return
		}
	}
}
