package compose

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("connection reset by peer")

// script answers calls by a function and keeps them.
type script struct {
	answer func(q Call) (Reply, error) // may block on nothing
	took   func(q Call) time.Duration  // nil: no time

	mu    sync.Mutex
	calls []Call
	ended int
}

func (s *script) ask(ctx context.Context, q Call) (Reply, error) {
	s.mu.Lock()
	s.calls = append(s.calls, q)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
	}()
	if s.took != nil {
		select {
		case <-time.After(s.took(q)):
		case <-ctx.Done():
			return Reply{Usage: Usage{Prompt: 1}}, ctx.Err()
		}
	}
	return s.answer(q)
}

// name describes a call in the form member/role/round, with the step of a graph.
func name(q Call) string {
	n := fmt.Sprintf("%s/%s/%d", q.Member, q.Role, q.Round)
	if q.Step != "" {
		n += "/" + q.Step
	}
	if q.Final {
		n += "/final"
	}
	return n
}

// names lists the calls, sorted within what begins at the same time.
func (s *script) names() (list []string) {
	for _, q := range s.calls {
		list = append(list, name(q))
	}
	slices.Sort(list)
	return list
}

// find returns the call of that name.
func (s *script) find(t *testing.T, n string) Call {
	t.Helper()
	for _, q := range s.calls {
		if name(q) == n {
			return q
		}
	}
	t.Fatalf("no call %s in %v", n, s.names())
	return Call{}
}

// replies answers by the name of the call, or of its member.
func replies(texts map[string]string) func(Call) (Reply, error) {
	return func(q Call) (Reply, error) {
		text, ok := texts[name(q)]
		if !ok {
			text, ok = texts[q.Member]
		}
		if !ok || text == "!" {
			return Reply{Usage: Usage{Prompt: 1}}, errBroken
		}
		return Reply{Text: text, Usage: Usage{Prompt: 10, Completion: int64(len(text))}, Cost: 0.5}, nil
	}
}

func question(text string) Input { return Input{Messages: []Message{{"user", text}}} }

// last returns the text of the call's last message, which must be the user's.
func last(t *testing.T, q Call) string {
	t.Helper()
	m := q.Messages[len(q.Messages)-1]
	if m.Role != "user" {
		t.Errorf("%s: the last message is the %s's", name(q), m.Role)
	}
	return m.Content
}

// seeded is a source of marks that a test repeats.
// seeded draws the same marks in every run of a test.
func seeded() func() string {
	source := rand.NewChaCha8([32]byte{1})
	return func() string { return fmt.Sprintf("%016X%016X", source.Uint64(), source.Uint64()) }
}

// places is a server with room for a few models: a model that is not loaded waits for a
// place, which it takes from the idle model that was used least recently.
type places struct {
	n              int
	load, generate time.Duration
	text           func(Call) string

	mu      sync.Mutex
	changed chan struct{}
	loaded  []string // least recently used first
	busy    map[string]int
	loads   map[string]int
	calls   int
}

func newPlaces(n int) *places {
	return &places{
		n: n, load: 10 * time.Second, generate: time.Second, changed: make(chan struct{}), busy: map[string]int{}, loads: map[string]int{},
		text: func(q Call) string { return fmt.Sprintf("%s thinks of %d", q.Member, q.Round) },
	}
}

// ready implements Ready.
func (p *places) ready(busy, want []string) []Group {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := map[string]bool{}
	for _, m := range busy {
		used[m] = true
	}
	var first Group
	var cold []string
	for _, m := range want {
		if slices.Contains(p.loaded, m) {
			used[m] = true
			first.Warm = append(first.Warm, m)
		} else {
			cold = append(cold, m)
		}
	}
	fit := min(max(p.n-len(used), 0), len(cold))
	first.Cold, cold = cold[:fit], cold[fit:]
	groups := []Group{first}
	for g := range slices.Chunk(cold, p.n) {
		groups = append(groups, Group{Cold: g})
	}
	return groups
}

// take returns whether the model must be loaded, once it has a place.
func (p *places) take(ctx context.Context, model string) (cold bool, err error) {
	for {
		p.mu.Lock()
		i := slices.Index(p.loaded, model)
		if i < 0 && len(p.loaded) == p.n {
			if j := slices.IndexFunc(p.loaded, func(m string) bool { return p.busy[m] == 0 }); j >= 0 {
				p.loaded = slices.Delete(p.loaded, j, j+1)
			}
		}
		if i >= 0 || len(p.loaded) < p.n {
			if i >= 0 {
				p.loaded = slices.Delete(p.loaded, i, i+1)
			} else {
				p.loads[model]++
			}
			p.loaded = append(p.loaded, model)
			p.busy[model]++
			p.mu.Unlock()
			return i < 0, nil
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// prewarm loads models while there are free places.
func (p *places) prewarm(models []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range models {
		if len(p.loaded) < p.n && !slices.Contains(p.loaded, m) {
			p.loads[m]++
			p.loaded = append(p.loaded, m)
		}
	}
}

func (p *places) ask(ctx context.Context, q Call) (Reply, error) {
	cold, err := p.take(ctx, q.Member)
	if err != nil {
		return Reply{}, err
	}
	defer func() {
		p.mu.Lock()
		p.busy[q.Member]--
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}()
	wait := []time.Duration{p.generate}
	if cold {
		wait = []time.Duration{p.load, p.generate}
	}
	for _, d := range wait {
		if d == p.generate {
			p.prewarm(q.Next)
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return Reply{Cold: cold}, ctx.Err()
		}
	}
	p.mu.Lock()
	p.calls++
	p.mu.Unlock()
	return Reply{Text: p.text(q), Cold: cold}, nil
}

func (p *places) total() (n int) {
	for _, l := range p.loads {
		n += l
	}
	return n
}

// TestLoads: on two places a model is loaded once per round.
func TestLoads(t *testing.T) {
	members := []string{"a", "b", "c", "d", "e"}
	for _, c := range []struct {
		name   string
		plan   Plan
		places int
		loads  int // at most
		calls  int
		took   time.Duration // 0: any
	}{
		{"ensemble", Plan{Pattern: Ensemble, Quorum: 5}, 2, 6, 6, 0},
		{"ensemble whose coordinator is a member", Plan{Pattern: Ensemble, Quorum: 5, Coordinator: "e"}, 2, 5, 6, 34 * time.Second},
		{"ensemble with room for all: the coordinator is loaded meanwhile", Plan{Pattern: Ensemble, Quorum: 5}, 6, 6, 6, 12 * time.Second},
		{"debate of one round", Plan{Pattern: Debate, Quorum: 5, Rounds: 1}, 2, 5 + 1*3 + 1, 11, 0},
		{"debate of four rounds", Plan{Pattern: Debate, Quorum: 5, Rounds: 4}, 2, 5 + 4*3 + 1, 26, 0},
		{"debate, room for all but one", Plan{Pattern: Debate, Quorum: 5, Rounds: 3}, 4, 5 + 3*1 + 1, 21, 0},
		{"debate on one place", Plan{Pattern: Debate, Quorum: 5, Rounds: 2}, 1, 5 + 2*4 + 1, 16, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, start := newPlaces(c.places), time.Now()
			c.plan.Members = members
			if c.plan.Coordinator == "" {
				c.plan.Coordinator = "judge"
			}
			result, err := Run(t.Context(), &c.plan, question("?"), s.ask, s.ready, nil)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if s.total() > c.loads || s.calls != c.calls || len(result.Calls) != c.calls {
				t.Errorf("%s: loads %v, %d in all of at most %d; %d calls, want %d", c.name, s.loads, s.total(), c.loads, s.calls, c.calls)
			}
			if took := time.Since(start); c.took > 0 && took != c.took {
				t.Errorf("%s: %v, want %v", c.name, took, c.took)
			}
			for _, m := range members {
				if c.plan.Pattern == Ensemble && s.loads[m] != 1 {
					t.Errorf("%s: %s was loaded %d times", c.name, m, s.loads[m])
				}
			}
		})
	}
}

// TestPlaceIsReused: a member of a later group takes the place of the first call that ends.
func TestPlaceIsReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := map[string]time.Duration{"a": 1 * time.Second, "b": 10 * time.Second, "c": 1 * time.Second, "d": 1 * time.Second}
		s := &script{took: func(q Call) time.Duration { return took[q.Member] }, answer: replies(map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "j": "5"})}
		var asked [][2]string
		ready := func(busy, want []string) []Group {
			asked = append(asked, [2]string{strings.Join(busy, ""), strings.Join(want, "")})
			room := 2 - len(busy)
			if room == 0 {
				return []Group{{}, {Cold: want}}
			}
			return []Group{{Cold: want[:min(room, len(want))]}, {Cold: want[min(room, len(want)):]}}
		}
		start := time.Now()
		result, err := Run(t.Context(), &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c", "d"}, Coordinator: "j", Quorum: 4}, question("?"), s.ask, ready, nil)
		if err != nil || result.Text != "5" || time.Since(start) != 10*time.Second+time.Duration(took["j"]) {
			t.Errorf("%q, %v after %v", result.Text, err, time.Since(start))
		}
		if want := [][2]string{{"", "abcd"}, {"b", "cd"}, {"b", "d"}, {"", "j"}}; !slices.Equal(asked, want) {
			t.Errorf("asked for %v, want %v", asked, want)
		}
		for member, next := range map[string]string{"a": "cd", "b": "cd", "c": "d", "d": "j"} {
			if got := strings.Join(s.find(t, member+"/member/1").Next, ""); got != next {
				t.Errorf("after %s: %q, want %q", member, got, next)
			}
		}
	})
}

// TestCoordinatorComesLast: on one place a member that is the coordinator too is asked last, so
// that it is loaded once.
func TestCoordinatorComesLast(t *testing.T) {
	s := &script{answer: replies(map[string]string{"a": "1", "b": "2", "c": "3", "a/coordinator/1/final": "4"})}
	ready := func(busy, want []string) []Group {
		if len(busy) > 0 {
			return []Group{{}, {Cold: want}}
		}
		return []Group{{Cold: want[:1]}, {Cold: want[1:]}}
	}
	result, err := Run(t.Context(), &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c"}, Coordinator: "a", Quorum: 3}, question("?"), s.ask, ready, nil)
	var order []string
	for _, m := range result.Calls {
		order = append(order, m.Member)
	}
	if err != nil || strings.Join(order, "") != "bcaa" {
		t.Errorf("asked %v: %v", order, err)
	}
}

// TestNoRoom: while Ready has no room beside a busy member, no other call begins.
func TestNoRoom(t *testing.T) {
	for name, none := range map[string][]Group{"empty": {{}}, "nothing": nil, "empty and later": {{}, {Cold: []string{"a", "b", "c", "j"}}}} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{took: func(q Call) time.Duration { return time.Second }, answer: replies(everyPattern[Ensemble])}
			ready := func(busy, want []string) []Group {
				if len(busy) > 0 {
					return none
				}
				return []Group{{Cold: want[:1]}, {Cold: want[1:]}}
			}
			ask := func(ctx context.Context, q Call) (Reply, error) {
				if q.Member == "b" { // an event while b is busy and c has no room
					q.Began()
				}
				return s.ask(ctx, q)
			}
			start := time.Now()
			if _, err := Run(t.Context(), planOf(Ensemble), question("?"), ask, ready, nil); err != nil || time.Since(start) != 4*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
		})
	}
}

// TestReadyIsUntrusted: a Ready that repeats, omits or invents members loses and doubles none.
func TestReadyIsUntrusted(t *testing.T) {
	for name, ready := range map[string]Ready{
		"nothing":    func(_, _ []string) []Group { return nil },
		"empty":      func(_, _ []string) []Group { return []Group{{}, {}} },
		"repeats":    func(_, want []string) []Group { return []Group{{Warm: want, Cold: want}, {Warm: want}} },
		"invents":    func(_, want []string) []Group { return []Group{{Warm: []string{"x", "a"}}, {Cold: []string{"y"}}} },
		"writes":     func(_, want []string) []Group { clear(want); return []Group{{Warm: want}} },
		"omits most": func(_, want []string) []Group { return []Group{{Cold: want[:1]}} },
	} {
		s := &script{answer: replies(map[string]string{"a": "1", "b": "2", "c": "3", "j": "4"})}
		_, err := Run(t.Context(), &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c"}, Coordinator: "j"}, question("?"), s.ask, ready, nil)
		if want := []string{"a/member/1", "b/member/1", "c/member/1", "j/coordinator/1/final"}; err != nil || !slices.Equal(s.names(), want) {
			t.Errorf("%s: %v, %v", name, s.names(), err)
		}
	}
}
