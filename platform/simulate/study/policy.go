package study

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

type Policy struct {
	Text     string // as given
	Eviction eviction.Policy
	Learned  bool // keep-alive from history
	Prewarm  bool // starts replicas ahead of forecast requests
	Idle     time.Duration
	Future   bool // it reads the trace's future
	Bare     bool // no protection of functions that were evicted too early
}

// Clairvoyant and Furthest are bounds that know the future. The first weighs the next
// use with the cost of loading each byte again, the second evicts the model whose next
// use is furthest away.
const (
	Clairvoyant = "clairvoyant"
	Furthest    = "furthest"
)

var evictions = map[string]eviction.Policy{
	"lru": eviction.LRU, "lfu": eviction.LFU, "gdsf": eviction.GDSF, "next-use": eviction.NextUse, Clairvoyant: eviction.Future, Furthest: eviction.Furthest,
}

// PolicyNames are the eviction policies, Parts the options after a +.
var (
	PolicyNames = []string{"lru", "lfu", "gdsf", "next-use", Clairvoyant, Furthest}
	Parts       = []string{"learned", "prewarm", "idle=TIME", "bare"}
)

// ParsePolicy reads a word such as next-use+learned+prewarm or lru+idle=10m.
func ParsePolicy(text string) (Policy, error) {
	p := Policy{Text: text}
	parts := strings.Split(text, "+")
	var ok bool
	if p.Eviction, ok = evictions[parts[0]]; !ok {
		return p, functions.UnknownWord(parts[0], "policy", PolicyNames)
	}
	p.Future = parts[0] == Clairvoyant || parts[0] == Furthest
	for _, part := range parts[1:] {
		idle, isIdle := strings.CutPrefix(part, "idle=")
		switch {
		case part == "learned":
			p.Learned = true
		case part == "prewarm":
			p.Prewarm = true
		case part == "bare":
			p.Bare = true
		case isIdle:
			d, err := functions.ParseDuration(idle)
			if err != nil || d < 0 {
				return p, fmt.Errorf("policy %s: idle: %q is no duration such as 10m", functions.Clip(text), functions.Clip(idle))
			}
			p.Idle = max(d.Std(), time.Nanosecond)
		default:
			return p, functions.UnknownWord(part, "part of a policy", Parts)
		}
	}
	return p, nil
}

// ParsePolicies parses policies separated by commas; duplicates are an error.
func ParsePolicies(text string) (out []Policy, err error) {
	for word := range strings.SplitSeq(text, ",") {
		p, err := ParsePolicy(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(q Policy) bool { return q.Text == p.Text }) {
			return nil, fmt.Errorf("policy %s is asked for twice", functions.Clip(p.Text))
		}
		out = append(out, p)
	}
	return out, nil
}

// schedule returns the policy in placement's terms.
func (p Policy) schedule() placement.Policy {
	s := placement.DefaultPolicy
	s.Eviction, s.NoMinResidency = p.Eviction, p.Bare
	if p.Learned {
		s.KeepAlive = placement.Learned
	}
	return s
}

func (p Policy) models(all []*functions.Model) []*functions.Model {
	if p.Idle == 0 {
		return all
	}
	out := make([]*functions.Model, len(all))
	for i, m := range all {
		c := *m
		c.Spec.Scale.Idle = functions.Duration(p.Idle)
		out[i] = &c
	}
	return out
}

// future is the requests of a trace: for each function the seconds in which it is
// requested.
type future map[functions.Name][]uint32

func readFuture(read trace.Requests) (future, error) {
	f := future{}
	for r, err := range read {
		if err != nil {
			return nil, err
		}
		name := r.Function.WithoutAdapter()
		at := uint32(min(r.At/time.Second, math.MaxUint32))
		if list := f[name]; len(list) == 0 || list[len(list)-1] != at {
			f[name] = append(list, at)
		}
	}
	return f, nil
}

// next returns the next request of a function after a time; 0 for never.
func (f future) next(name functions.Name, at time.Duration) time.Duration {
	list := f[name]
	i, _ := slices.BinarySearch(list, uint32(at/time.Second)+1)
	if i == len(list) {
		return 0
	}
	return time.Duration(list[i]) * time.Second
}
