package orchestrator

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/scenario"
)

// stage runs scenarios on fakes, in the time of a synctest bubble.
type stage struct {
	*testRig
	hosts map[string]*fakeAgent
	epoch int64
}

func (s *stage) Deploy(ms ...*functions.Model) {
	s.c.set(ms...)
	s.s.Changed()
	synctest.Wait()
}

func (s *stage) Ask(m string, n int) {
	s.d.mu.Lock()
	delete(s.d.failed, fname(m))
	s.d.mu.Unlock()
	if f := s.d.snapshot(fname(m)).Failure; f != nil && time.Now().Before(f.Until) {
		s.d.mu.Lock()
		s.d.failed[fname(m)] = f.Reason // as the activator does: failed at once, without a wake
		s.d.mu.Unlock()
		if time.Until(f.Until) > time.Second {
			return
		}
	}
	s.d.ask(s.s, fname(m), n)
	synctest.Wait()
}

func (s *stage) Leave(m string)  { s.d.leave(s.s, fname(m)); synctest.Wait() }
func (s *stage) Finish(m string) { s.d.done(fname(m)); s.s.Nudge(fname(m)); synctest.Wait() }

func (s *stage) Waiting(m string) int {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.queued[fname(m)]
}

func (s *stage) Running(m string) (n int) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for id, a := range s.d.active {
		if s.d.of[id] == fname(m) {
			n += a
		}
	}
	return n
}

func (s *stage) Refusal(m string) string {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.failed[fname(m)]
}

func (s *stage) Replicas(m string) (out []string) {
	for _, r := range s.s.Replicas() {
		if r.Function == fname(m).String() && r.State != functions.Draining && !r.State.Over() {
			out = append(out, string(r.State)+"@"+r.Node)
		}
	}
	slices.Sort(out)
	return out
}

func (s *stage) Starts(m string) (n int) {
	for _, h := range s.hosts {
		loads, _ := h.did()
		for _, l := range loads {
			if l == fname(m).String() {
				n++
			}
		}
	}
	return n
}

func (s *stage) Break(m, cause string) {
	for _, h := range s.hosts {
		h.mu.Lock()
		h.fail[m] = cause
		h.mu.Unlock()
	}
}

func (s *stage) Vanish(n string) {
	h := s.hosts[n]
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mute = true
	h.refuse = errVanished
}

func (s *stage) Return(n string) {
	h := s.hosts[n]
	h.mu.Lock()
	h.mute, h.refuse = false, nil
	h.push()
	h.mu.Unlock()
	synctest.Wait()
}

func (s *stage) Restart() {
	s.stop()
	s.d = newFakePath() // its requests ended with it
	s.d.slots = 100
	s.epoch++
	s.boot(s.epoch)
	for _, h := range s.hosts {
		h.mu.Lock()
		h.s = s.s
		h.mu.Unlock()
		go h.beat(s.ctx)
	}
	synctest.Wait()
}

func (s *stage) Pass(d time.Duration) { s.pass(d) }

func (s *stage) Model(name string, edit func(*functions.ModelSpec)) *functions.Model {
	return model(name, func(sp *functions.ModelSpec) {
		if edit != nil {
			edit(sp)
		}
	})
}

type vanishedError struct{}

func (vanishedError) Error() string { return "no route to host" }

var errVanished error = vanishedError{}

func TestScenarios(t *testing.T) {
	scenario.Run(t, scenario.Options{Minute: time.Minute, Boot: 8 * time.Second}, func(t *testing.T, _ time.Duration, story scenario.Story) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			r.d.slots = 100
			s := &stage{testRig: r, epoch: 1, hosts: map[string]*fakeAgent{}}
			defer func() { s.stop() }()
			for _, id := range []string{"a", "b"} {
				s.hosts[id] = r.host(newFakeAgent(id, 1))
			}
			defer func() {
				if t.Failed() {
					for _, e := range s.s.Events(0) {
						t.Logf("  %s %s %s %s %s %s %s", e.At.Format("05.000"), e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message)
					}
				}
			}()
			story(t, s)
		})
	})
}
