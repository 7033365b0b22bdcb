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
	// warmNeed is what a parent is taken to need before one has been seen.
	warmNeed = functions.Bytes(640 << 20)
	// autoShare: automatic means that a parent takes at most this part of the
	// memory that replicas may reserve.
	autoShare = 8
	// warmMost parents at once: environments, or variables, may differ.
	warmMost = 2
	// warmForks a parent is replaced after: a bound on whatever wears out.
	warmForks = 500
	// warmWait bounds the imports of a parent.
	warmWait = 5 * time.Minute
	// warmLook is how often parents are asked how they are, within warmAnswer;
	// one that does not answer so often in a row is ended.
	warmLook, warmAnswer, warmDeaf = 10 * time.Second, 2 * time.Second, 3
	// warmIdle: one that has forked nothing for so long makes room for another.
	warmIdle = 15 * time.Minute
	// A parent that ended is started again after one second, then two, …
	warmBackoff, warmBackoffMost = time.Second, 5 * time.Minute
	// compileWait bounds the making of bytecode.
	compileWait = 20 * time.Minute

	warmPrefix = "warm-"
)

// hearth keeps the warm interpreters of a node: one per environment that models
// of it need, started when one is first wanted (or known to be), watched, and
// replaced when it has died, worn out, or does not match what is installed.
// Replicas ask it which parent forks their engine; it never makes them wait.
type hearth struct {
	o   hearthOptions
	log *slog.Logger

	wake chan struct{}

	mu      sync.Mutex
	parents map[string]*parent   // by process id
	wanted  map[string]*kindling // by id
	seen    map[string]*kindling // environments, by program; nil once their bytecode was looked at
	backoff map[string]pause     // by id
	closed  bool
	running sync.WaitGroup
}

type hearthOptions struct {
	Mode   WarmMode
	Dir    string          // for sockets and the parents' program
	Memory functions.Bytes // of the node, for replicas
	Used   func() functions.Bytes
	Keeper func() (*supervisor.Client, error)
	// Changed is called when what parents says has changed; no lock is held.
	Changed func()
	Log     *slog.Logger
}

// kindling is a parent that is to be.
type kindling struct {
	id      string
	row     string
	env     forkserver.Environment
	environ []string
	up      chan struct{} // closed when it is ready, or will not be
	lit     bool          // it is being started
}

// parent is one that runs.
type parent struct {
	kindling
	socket string
	print  string // of its files, when it began
	since  time.Time
	child  *supervisor.Child

	// Under the hearth's lock.
	ready  bool
	facts  forkserver.Facts
	bytes  functions.Bytes
	used   time.Time // last fork
	deaf   int
	ending string // why it is being ended
}

type pause struct {
	tries int
	until time.Time
	why   string
}

// warmMeta are the notes kept with a parent's process.
type warmMeta struct {
	Warm    string   `json:"warm"` // its row
	Program string   `json:"program"`
	Environ []string `json:"environ"`
	Script  string   `json:"script"`
	Print   string   `json:"print"`
}

func newHearth(o hearthOptions) *hearth {
	if o.Mode == "" {
		o.Mode = WarmOff
	}
	return &hearth{
		o: o, log: o.Log, wake: make(chan struct{}, 1), parents: map[string]*parent{}, wanted: map[string]*kindling{},
		seen: map[string]*kindling{}, backoff: map[string]pause{},
	}
}

func (h *hearth) poke() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// off says why no parent will be, "" if one may.
func (h *hearth) off() string {
	switch {
	case h.o.Mode == WarmOff:
		return "warm interpreters are off"
	case !forkserver.Works:
		return "warm interpreters need Linux"
	}
	return ""
}

// kindle makes what an engine's parent would be of its command.
func (h *hearth) kindle(cmd engine.Command) (*kindling, string) {
	row := forkserver.Row(string(cmd.Engine))
	if row == "" || len(cmd.Argv) == 0 {
		return nil, ""
	}
	env, err := forkserver.Look(cmd.Argv[0])
	if err != nil {
		return nil, err.Error()
	}
	k := &kindling{row: row, env: env, environ: forkserver.Scrub(engine.Environ(cmd.Env)), up: make(chan struct{})}
	slices.Sort(k.environ)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{row, env.Program}, k.environ...), "\x00")))
	k.id = warmPrefix + row + "-" + hex.EncodeToString(sum[:5])
	return k, ""
}

// Via names the socket of the parent that forks an engine, or why none does.
// Without one it begins to make one, for the next start. It does not wait.
func (h *hearth) Via(cmd engine.Command) (via, note string) {
	k, note := h.kindle(cmd)
	if k == nil {
		return "", note
	}
	if why := h.off(); why != "" {
		if h.o.Mode != WarmOff {
			note = why
		}
		h.see(k)
		return "", note
	}
	h.mu.Lock()
	p, note := h.pick(k, cmd.Env)
	if p != nil {
		p.used = time.Now()
		via = p.socket
	}
	h.mu.Unlock()
	if p == nil {
		h.want(k)
	}
	return via, note
}

// pick is the parent that forks an engine with this environment; the lock is held.
func (h *hearth) pick(k *kindling, env []string) (p *parent, note string) {
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
		if p.print != forkserver.Print(p.files()) {
			h.endLocked(p, "its files have changed")
			note = "the installation has changed since the warm interpreter began"
			continue
		}
		if v := p.facts.Differs(env); v != "" {
			note = "the warm interpreter was started with another " + v
			continue
		}
		return p, ""
	}
	return nil, note
}

// files that tell whether a parent is still what is installed.
func (p *parent) files() []string { return append(p.env.Files(), p.facts.Files...) }

// want has a parent made, if there is none and there may be. It gives the
// channel that is closed when it is ready, or will not be.
func (h *hearth) want(k *kindling) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.parents[k.id] != nil:
		return h.parents[k.id].up
	case h.wanted[k.id] != nil:
		return h.wanted[k.id].up
	case h.closed || len(h.wanted) >= 2*warmMost:
		return nil
	}
	h.wanted[k.id] = k
	h.poke()
	return k.up
}

// see has the bytecode of an environment looked at, once.
func (h *hearth) see(k *kindling) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.seen[k.env.Program]; !known {
		h.seen[k.env.Program] = k
		h.poke()
	}
}

// Prepare begins what starts of these models will want, before any is asked for.
func (h *hearth) Prepare(cmd engine.Command) {
	k, _ := h.kindle(cmd)
	if k == nil {
		return
	}
	if h.off() != "" {
		h.see(k)
		return
	}
	h.mu.Lock()
	for _, p := range h.parents {
		if p.id == k.id || p.ready && p.row == k.row && p.env.Program == k.env.Program && p.facts.Differs(cmd.Env) == "" {
			h.mu.Unlock()
			return
		}
	}
	h.mu.Unlock()
	h.want(k)
}

// Await begins the parent of a command and gives a channel that is closed when
// it is ready, or will not be; nil where there is nothing to wait for. The
// imports that it does once a plain start does twice, so that to wait for them is
// the quicker way even for the first.
func (h *hearth) Await(cmd engine.Command) <-chan struct{} {
	if h.off() != "" {
		return nil
	}
	k, _ := h.kindle(cmd)
	if k == nil {
		return nil
	}
	h.mu.Lock()
	p, _ := h.pick(k, cmd.Env)
	failed := time.Now().Before(h.backoff[k.id].until)
	h.mu.Unlock()
	if p != nil || failed {
		return nil
	}
	return h.want(k)
}

// Suspect is told that a parent did not fork.
func (h *hearth) Suspect(socket string) {
	h.mu.Lock()
	for _, p := range h.parents {
		if p.socket == socket {
			p.deaf = max(p.deaf, warmDeaf-1) // if it does not answer now either, it goes
		}
	}
	h.mu.Unlock()
	h.poke()
}

// makeWay ends the parent that forked longest ago if replicas have been given
// the memory it takes. Those that are to be kept all the same are taken off what
// the node offers (WarmParent.Kept).
func (h *hearth) makeWay() {
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
		h.endLocked(oldest, "replicas have its memory")
	}
}

// Memory that parents take, and what they are.
func (h *hearth) Parents() (list []functions.WarmParent, bytes functions.Bytes) {
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
			list = append(list, functions.WarmParent{Engine: strings.SplitN(strings.TrimPrefix(id, warmPrefix), "-", 2)[0], State: "failed", Note: b.why, Since: b.until})
		}
	}
	slices.SortFunc(list, func(a, b functions.WarmParent) int {
		return strings.Compare(a.Program+a.State+a.Note, b.Program+b.State+b.Note)
	})
	return list, bytes
}

// Run tends the parents until ctx ends. They are the keeper's: whether they end
// with us is decided where its other processes are.
func (h *hearth) Run(ctx context.Context) {
	defer func() {
		h.mu.Lock()
		h.closed = true
		h.mu.Unlock()
		h.running.Wait()
	}()
	t := time.NewTicker(warmLook)
	defer t.Stop()
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	for {
		if d := h.light(ctx); d > 0 {
			retry.Reset(d)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			h.tend(ctx)
		case <-h.wake:
			h.tend(ctx)
		case <-retry.C:
		}
	}
}

// light starts what is wanted and may be; it says when to try again.
func (h *hearth) light(ctx context.Context) (again time.Duration) {
	used := h.o.Used()
	h.mu.Lock()
	var now, look []*kindling
	for program, k := range h.seen {
		if k != nil {
			look = append(look, k)
			h.seen[program] = nil
		}
	}
	for id, k := range h.wanted {
		if k.lit {
			continue
		}
		if wait := time.Until(h.backoff[id].until); wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		if why := h.room(k, used); why != "" {
			delete(h.wanted, id)
			h.backoff[id] = pause{until: time.Now().Add(warmLook), why: why}
			close(k.up)
			continue
		}
		// It stays among the wanted until it is among the parents.
		k.lit = true
		now = append(now, k)
		if _, known := h.seen[k.env.Program]; !known {
			h.seen[k.env.Program] = nil
			look = append(look, k)
		}
	}
	h.mu.Unlock()
	for _, k := range look {
		h.look(ctx, k)
	}
	for _, k := range now {
		err := h.start(ctx, k)
		h.mu.Lock()
		delete(h.wanted, k.id)
		h.mu.Unlock()
		if err != nil {
			close(k.up)
			if ctx.Err() == nil {
				h.log.Warn("no warm interpreter", "program", k.env.Program, "error", err)
				h.failed(k.id, err.Error())
			}
		}
	}
	return again
}

// room says why there is none for another parent; the lock is held.
func (h *hearth) room(k *kindling, used functions.Bytes) string {
	need, have := warmNeed, functions.Bytes(0)
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
	if len(h.parents) < warmMost {
		return ""
	}
	var oldest *parent
	for _, p := range h.parents {
		if p.ready && p.ending == "" && time.Since(p.used) > warmIdle && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return fmt.Sprintf("%d warm interpreters are in use, none with these variables", len(h.parents))
	}
	h.endLocked(oldest, "another one wants its place")
	return "another warm interpreter makes room"
}

// start has the keeper run a parent.
func (h *hearth) start(ctx context.Context, k *kindling) error {
	client, err := h.o.Keeper()
	if err != nil {
		return err
	}
	script, err := forkserver.Install(h.o.Dir)
	if err != nil {
		return err
	}
	p := &parent{
		kindling: *k, socket: filepath.Join(h.o.Dir, k.id+".sock"), since: time.Now(), used: time.Now(),
		bytes: warmNeed, print: forkserver.Print(k.env.Files()),
	}
	os.Remove(p.socket)
	meta, err := json.Marshal(warmMeta{Warm: k.row, Program: k.env.Program, Environ: k.environ, Script: script, Print: p.print})
	if err != nil {
		return err
	}
	sctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	child, err := client.Spawn(sctx, supervisor.Process{ID: k.id, Argv: k.env.Argv(script, p.socket, k.row), Env: k.environ, Dir: h.o.Dir, Meta: meta})
	if err != nil {
		return err
	}
	p.child = child
	h.log.Info("warm interpreter begins", "program", k.env.Program, "pid", child.PID)
	h.follow(ctx, p)
	return nil
}

// adopt takes a parent that an earlier agent left, or has it ended.
func (h *hearth) adopt(ctx context.Context, client *supervisor.Client, r supervisor.Running) {
	kill := func(why string) {
		h.log.Info("a warm interpreter of an earlier agent is ended", "process", r.ID, "why", why)
		client.Kill(ctx, r.ID)
	}
	var m warmMeta
	if json.Unmarshal(r.Meta, &m) != nil || m.Warm == "" {
		kill("it has no notes")
		return
	}
	script, err := forkserver.Install(h.o.Dir)
	if err != nil || m.Script != script || h.off() != "" {
		kill("it is of another version, or none is wanted")
		return
	}
	env, err := forkserver.Look(m.Program)
	if err != nil || forkserver.Print(env.Files()) != m.Print {
		kill("its program has changed")
		return
	}
	p := &parent{
		kindling: kindling{id: r.ID, row: m.Warm, env: env, environ: m.Environ, up: make(chan struct{})}, socket: filepath.Join(h.o.Dir, r.ID+".sock"),
		since: r.Started, used: time.Now(), bytes: warmNeed, child: client.Follow(r),
	}
	h.log.Info("adopted", "process", r.ID, "pid", r.PID)
	h.follow(ctx, p)
}

// isWarm reports whether a process of the keeper is one of the hearth's.
func isWarm(id string) bool { return strings.HasPrefix(id, warmPrefix) }

// follow enters a parent and watches it to its end.
func (h *hearth) follow(ctx context.Context, p *parent) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		close(p.up)
		return
	}
	h.parents[p.id] = p
	h.running.Add(1)
	h.mu.Unlock()
	h.o.Changed()
	go func() {
		defer h.running.Done()
		if err := h.rise(ctx, p); err != nil {
			if ctx.Err() != nil {
				close(p.up)
				return
			}
			h.mu.Lock()
			h.endLocked(p, err.Error())
			h.mu.Unlock()
		}
		close(p.up)
		h.o.Changed()
		select {
		case e := <-p.child.Exited:
			h.gone(ctx, p, e)
		case <-ctx.Done():
		}
	}()
}

// rise waits until a parent answers.
func (h *hearth) rise(ctx context.Context, p *parent) error {
	ctx, cancel := context.WithTimeoutCause(ctx, warmWait-min(time.Since(p.since), warmWait), fmt.Errorf("not ready within %s", warmWait))
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if _, err := os.Stat(p.socket); err == nil {
			f, err := h.ask(ctx, p)
			if err == nil {
				if why := f.Unfit(); why != "" {
					return errors.New(why)
				}
				h.mu.Lock()
				p.facts, p.bytes, p.ready = f, functions.Bytes(f.Bytes), true
				p.print = forkserver.Print(p.files())
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

func (h *hearth) ask(ctx context.Context, p *parent) (forkserver.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, warmAnswer)
	defer cancel()
	return forkserver.Ask(ctx, p.socket)
}

// gone is the end of a parent. It is wanted again, after a while; its engines
// live on.
func (h *hearth) gone(ctx context.Context, p *parent, e supervisor.Exit) {
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
	h.failed(p.id, why)
	if again && why != "another one wants its place" {
		k := p.kindling
		k.up, k.lit = make(chan struct{}), false
		h.want(&k)
	}
	h.o.Changed()
}

// failed has the next try wait, longer each time.
func (h *hearth) failed(id, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.backoff[id]
	b.why = why
	b.until = time.Now().Add(min(warmBackoff<<min(b.tries, 10), warmBackoffMost))
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

// endLocked has a parent ended; its end does the rest. The lock is held.
func (h *hearth) endLocked(p *parent, why string) {
	if p.ending != "" {
		return
	}
	p.ending = why
	h.poke()
}

// tend looks after the parents that run.
func (h *hearth) tend(ctx context.Context) {
	h.makeWay()
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
			f, err := h.ask(ctx, p)
			if ctx.Err() != nil {
				return
			}
			h.mu.Lock()
			switch {
			case err != nil:
				if p.deaf++; p.deaf >= warmDeaf {
					h.endLocked(p, "it does not answer")
				}
			case f.Unfit() != "":
				h.endLocked(p, f.Unfit())
			case f.Forks >= warmForks:
				h.endLocked(p, fmt.Sprintf("%d forks are enough", f.Forks))
			case p.print != forkserver.Print(p.files()):
				h.endLocked(p, "its files have changed")
			default:
				p.facts, p.deaf = f, 0
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

func (h *hearth) kill(ctx context.Context, id string) {
	client, err := h.o.Keeper()
	if err != nil {
		return
	}
	kctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client.Signal(kctx, id, syscall.SIGKILL)
}

// look sees to the bytecode of an environment: what is missing is made beside
// everything else, or the command that makes it is named.
func (h *hearth) look(ctx context.Context, k *kindling) {
	have, of := k.env.Bytecode(forkserver.Sample(k.row)...)
	if of == 0 || have*10 >= of*9 {
		return
	}
	command := strings.Join(k.env.Compile(), " ")
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
	h.running.Go(func() { h.compile(ctx, client, k, of) })
}

// compile makes bytecode, in a process of the keeper's like all others.
func (h *hearth) compile(ctx context.Context, client *supervisor.Client, k *kindling, of int) {
	ctx, cancel := context.WithTimeout(ctx, compileWait)
	defer cancel()
	id := warmPrefix + "bytecode-" + strings.TrimPrefix(k.id, warmPrefix)
	began := time.Now()
	child, err := client.Spawn(ctx, supervisor.Process{ID: id, Argv: k.env.Compile(), Env: k.environ})
	if err != nil {
		h.log.Warn("bytecode", "error", err)
		return
	}
	tell := time.NewTicker(15 * time.Second)
	defer tell.Stop()
	for {
		select {
		case e := <-child.Exited:
			have, of := k.env.Bytecode(forkserver.Sample(k.row)...)
			h.log.Info("bytecode made", "program", k.env.Program, "compiled", have, "of", of, "took", time.Since(began).Round(time.Second), "exit", e.String())
			return
		case <-tell.C:
			have, _ := k.env.Bytecode(forkserver.Sample(k.row)...)
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
