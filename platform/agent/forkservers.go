package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// WarmMode is whether a node keeps warm interpreters.
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
	// autoShare: in automatic mode a parent takes at most this part of the
	// memory that replicas may reserve.
	autoShare = 8
	// maxParents parents at once: environments, or variables, may differ.
	maxParents = 2
	// maxUnanswered checks in a row without an answer end a parent.
	maxUnanswered = 3
	// parentIdleAfter: one that has forked nothing for so long makes room for another.
	parentIdleAfter = 15 * time.Minute
	// A parent that ended is started again after one second, then two, …
	minRestartDelay, maxRestartDelay = time.Second, 5 * time.Minute
	// compileTimeout bounds the making of bytecode.
	compileTimeout = 20 * time.Minute

	parentPrefix = "warm-"
)

// forkServers keeps the warm interpreters of a node: one per environment that its models
// need. A parent is started when it is first requested (or its model is known), checked,
// and replaced when it has ended, worn out or does not match the installation. Replicas
// ask which parent forks their engine; asking does not wait.
type forkServers struct {
	o   forkServersOptions
	log *slog.Logger

	wake newest.Signal

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
	// Changed is called when the result of Parents has changed; no lock is held.
	Changed func()
	Log     *slog.Logger
}

// parentSpec is what identifies a parent: what it imports, of which environment.
type parentSpec struct {
	id       string
	row      string
	env      forkserver.Environment
	environ  []string
	ready    chan struct{} // closed when it is ready, or will not be
	starting bool          // it is being started
}

// parent is a warm interpreter that runs, a process of the supervisor.
type parent struct {
	parentSpec
	*forkserver.Parent
	socket string
	since  time.Time
	child  *supervisor.Child

	// Under forkServers.mu.
	bytes  functions.Bytes
	used   time.Time // last fork
	ending string    // why it is being ended
}

type retryState struct {
	tries  int
	until  time.Time
	reason string
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
	o.Mode = cmp.Or(o.Mode, WarmOff)
	return &forkServers{
		o: o, log: o.Log, wake: newest.NewSignal(), parents: map[string]*parent{}, requested: map[string]*parentSpec{},
		bytecodeChecks: map[string]*parentSpec{}, backoff: map[string]retryState{},
	}
}

// disabledReason is why there are no parents; "" if there may be.
func (s *forkServers) disabledReason() string {
	switch {
	case s.o.Mode == WarmOff:
		return "warm interpreters are off"
	case !forkserver.Supported:
		return "warm interpreters need Linux"
	}
	return ""
}

// specFor is the spec of the parent of an engine's command; nil, with a note, if there can
// be none.
func (s *forkServers) specFor(cmd engine.Command) (*parentSpec, string) {
	row := forkserver.ImportList(string(cmd.Engine))
	if row == "" || len(cmd.Argv) == 0 {
		return nil, ""
	}
	env, err := forkserver.FindEnvironment(cmd.Argv[0])
	if err != nil {
		return nil, err.Error()
	}
	spec := &parentSpec{row: row, env: env, environ: forkserver.ParentEnviron(engine.Environ(cmd.Env)), ready: make(chan struct{})}
	slices.Sort(spec.environ)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{row, env.Program}, forkserver.IdentityOf(spec.environ)...), "\x00")))
	spec.id = parentPrefix + row + "-" + hex.EncodeToString(sum[:5])
	return spec, ""
}

// ForkSocket is the socket of the parent that forks an engine, or "" and why there is
// none. Then it requests one for the next start. It does not wait.
func (s *forkServers) ForkSocket(cmd engine.Command) (forkSocket, note string) {
	spec, note := s.specFor(cmd)
	if spec == nil {
		return "", note
	}
	if reason := s.disabledReason(); reason != "" {
		if s.o.Mode != WarmOff {
			note = reason
		}
		s.queueBytecodeCheck(spec)
		return "", note
	}
	s.mu.Lock()
	p, note := s.matchingParentLocked(spec, cmd.Env)
	if p != nil {
		p.used = time.Now()
		forkSocket = p.socket
	}
	s.mu.Unlock()
	if p == nil {
		s.requestParent(spec)
	}
	return forkSocket, note
}

// matchingParentLocked is the parent that forks an engine with this environment; nil, with
// a note, if there is none. mu must be held.
func (s *forkServers) matchingParentLocked(spec *parentSpec, env []string) (p *parent, note string) {
	note = "no warm interpreter yet"
	if b, ok := s.backoff[spec.id]; ok && b.reason != "" {
		note = b.reason
	}
	for _, p := range s.parents {
		if p.row != spec.row || p.env.Program != spec.env.Program {
			continue
		}
		if p.ending != "" {
			if p.id == spec.id {
				note = p.ending
			}
			continue
		}
		f, ready := p.Facts()
		switch v := f.DifferingVariable(env); {
		case !ready && p.id == spec.id:
			note = "the warm interpreter is not ready yet"
		case !ready:
		case p.Changed():
			s.requestEndLocked(p, "its files have changed")
			note = "the installation has changed since the warm interpreter began"
		case v != "":
			note = "the warm interpreter was started with another " + v
		default:
			return p, ""
		}
	}
	return nil, note
}

// requestParent requests a parent, if there is none and there may be. The channel is
// closed when it is ready or has failed; nil if it is not started.
func (s *forkServers) requestParent(spec *parentSpec) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.parents[spec.id] != nil:
		return s.parents[spec.id].ready
	case s.requested[spec.id] != nil:
		return s.requested[spec.id].ready
	case s.closed || len(s.requested) >= 2*maxParents:
		return nil
	}
	s.requested[spec.id] = spec
	s.wake.Set()
	return spec.ready
}

// queueBytecodeCheck has the bytecode of an environment checked, once.
func (s *forkServers) queueBytecodeCheck(spec *parentSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.bytecodeChecks[spec.env.Program]; !known {
		s.bytecodeChecks[spec.env.Program] = spec
		s.wake.Set()
	}
}

// Prepare starts a parent before the first start of its model.
func (s *forkServers) Prepare(cmd engine.Command) {
	spec, _ := s.specFor(cmd)
	if spec == nil {
		return
	}
	if s.disabledReason() != "" {
		s.queueBytecodeCheck(spec)
		return
	}
	s.mu.Lock()
	for _, p := range s.parents {
		f, ready := p.Facts()
		if p.id == spec.id || ready && p.row == spec.row && p.env.Program == spec.env.Program && f.DifferingVariable(cmd.Env) == "" {
			s.mu.Unlock()
			return
		}
	}
	s.mu.Unlock()
	s.requestParent(spec)
}

// StartParent starts the parent of a command. The channel is closed when it is ready or has
// failed; nil if there is nothing to wait for. Waiting is faster even for the first start,
// since a plain start does the same imports twice.
func (s *forkServers) StartParent(cmd engine.Command) <-chan struct{} {
	if s.disabledReason() != "" {
		return nil
	}
	spec, _ := s.specFor(cmd)
	if spec == nil {
		return nil
	}
	s.mu.Lock()
	p, _ := s.matchingParentLocked(spec, cmd.Env)
	failed := time.Now().Before(s.backoff[spec.id].until)
	s.mu.Unlock()
	if p != nil || failed {
		return nil
	}
	return s.requestParent(spec)
}

func (s *forkServers) OnForkFailed(socket string) {
	s.mu.Lock()
	for _, p := range s.parents {
		if p.socket == socket {
			p.OnForkFailed()
		}
	}
	s.mu.Unlock()
	s.wake.Set()
}

// evictIfMemoryShort ends the least recently used parent if replicas have reserved its
// memory. Parents of WarmOn are subtracted from what the node offers instead
// (WarmParent.Reserved).
func (s *forkServers) evictIfMemoryShort() {
	if s.o.Mode != WarmAuto {
		return
	}
	used := s.o.Used()
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest *parent
	for _, p := range s.parents {
		if p.ending != "" {
			continue
		}
		used += p.bytes
		if _, ready := p.Facts(); ready && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest != nil && used > s.o.Memory {
		s.requestEndLocked(oldest, "replicas need its memory")
	}
}

// Parents lists the parents and the memory that they take.
func (s *forkServers) Parents() (list []functions.WarmParent, bytes functions.Bytes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parents {
		w := functions.WarmParent{Engine: p.row, Program: p.env.Program, State: "starting", Memory: p.bytes, Reserved: s.o.Mode == WarmOn,
			Since: p.since}
		f, ready := p.Facts()
		switch {
		case p.ending != "":
			w.State, w.Note = "ending", p.ending
		case ready:
			w.State, w.Version, w.Python, w.Forks, w.Imports = "ready", f.Version, f.Python, f.Forks, f.Imports
		}
		bytes += p.bytes
		list = append(list, w)
	}
	for id, b := range s.backoff {
		if b.reason != "" && s.parents[id] == nil {
			list = append(list, functions.WarmParent{Engine: strings.SplitN(strings.TrimPrefix(id, parentPrefix), "-", 2)[0], State: "failed",
				Note: b.reason, Since: b.until})
		}
	}
	slices.SortFunc(list, func(a, b functions.WarmParent) int {
		return strings.Compare(a.Program+a.State+a.Note, b.Program+b.State+b.Note)
	})
	return list, bytes
}
