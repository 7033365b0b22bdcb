package victims

import (
	"cmp"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// Victim is a replica that may be evicted.
type Victim struct {
	Cost float64 // of its eviction; costs add up
	GPUs int     // that its eviction frees
}

// Rules says what the eviction of a victim, by its index, frees and when it is allowed.
type Rules interface {
	// Frees is what the eviction of victim i frees, and on which GPUs.
	Frees(i int) (functions.Resources, []int)
	// Team is the team of victim i.
	Team(i int) string
	// MayEvict reports whether victim i may be evicted together with others of its team
	// that have so many GPUs. With more it is not allowed where it is not with fewer. The
	// answer stays the same during a search.
	MayEvict(i, taken int) bool
}

// Search is a search on one node. It is reused for others.
type Search struct {
	// AtLeast: no set of victims costs less.
	AtLeast float64

	list  []Victim
	rules Rules
	room  *rooms.Room
	needs functions.Resources

	trial    rooms.Room
	set, out []int
	alone    []verdict // whether each victim may be evicted without others of its team
	per      []gpuVictims
	marks    []bool
}

type verdict uint8

const (
	unknown verdict = iota
	allowed
	refused
)

// gpuVictims is the set of victims whose eviction frees one GPU.
type gpuVictims struct {
	set  []int
	loss float64
}

// Begin begins a search among the victims on a node, in the order of eviction, for a
// replica with these needs. The node has this room.
func (s *Search) Begin(list []Victim, rules Rules, room *rooms.Room, needs functions.Resources) {
	s.list, s.rules, s.room, s.needs = list, rules, room, needs
	s.AtLeast, s.alone = math.Inf(1), s.alone[:0]
	perGPU := math.Inf(1)
	for _, v := range list {
		s.AtLeast = min(s.AtLeast, v.Cost)
		if v.GPUs > 0 {
			perGPU = min(perGPU, v.Cost/float64(v.GPUs))
		}
	}
	// Each missing GPU must be freed, and none costs less than perGPU.
	if missing := room.LackingGPUs(needs); missing > 0 {
		s.AtLeast = max(s.AtLeast, float64(missing)*perGPU)
	}
}

func (s *Search) reset() {
	s.trial.Set(s.room)
	s.set = s.set[:0]
}

// add puts victim i into the set, if it may be evicted.
func (s *Search) add(i int) bool {
	if s.alone[i] == unknown {
		s.alone[i] = refused
		if s.rules.MayEvict(i, 0) {
			s.alone[i] = allowed
		}
	}
	if s.alone[i] == refused {
		return false
	}
	taken := 0
	for _, j := range s.set {
		if s.list[j].GPUs > 0 && s.rules.Team(j) == s.rules.Team(i) {
			taken += s.list[j].GPUs
		}
	}
	if taken > 0 && !s.rules.MayEvict(i, taken) {
		return false
	}
	res, gpus := s.rules.Frees(i)
	s.trial.Give(res, gpus)
	s.set = append(s.set, i)
	return true
}

func (s *Search) fits() bool { return s.trial.Fits(s.needs) }

// Best returns the cheapest set of victims and its cost, nil if none costs less than
// bound. It tries three kinds of sets: victims in eviction order until there is room, less
// the unnecessary ones; each victim alone; and all victims on the cheapest GPUs, which
// lets one large replica replace several small ones. The set is valid until the next call.
func (s *Search) Best(bound float64) ([]int, float64) {
	least := bound
	keep := func() {
		if loss := s.total(); loss < least {
			least = loss
			s.out = append(s.out[:0], s.set...)
		}
	}
	s.out = s.out[:0]
	s.alone = append(s.alone, make([]verdict, len(s.list))...)
	s.reset()
	stays := false
	for i := range s.list {
		if !s.add(i) {
			stays = true
		} else if s.fits() {
			s.prune()
			keep()
			break
		}
	}
	// All victims together do not make room. A victim may have been refused because an
	// unnecessary one of its team already brings the team down to its guarantee.
	if !s.fits() && (!stays || len(s.set) == 0) {
		return nil, 0
	}
	if len(s.list) > 1 {
		for i := range s.list {
			if s.list[i].Cost >= least {
				continue
			}
			if s.reset(); s.add(i) && s.fits() {
				keep()
			}
		}
	}
	if s.needs.GPUs > 0 && len(s.out) > 1 {
		s.byGPU()
		if s.fits() {
			s.prune()
			keep()
		}
	}
	if len(s.out) == 0 {
		return nil, 0
	}
	return s.out, least
}

func (s *Search) total() (loss float64) {
	for _, i := range s.set {
		loss += s.list[i].Cost
	}
	return loss
}

// prune drops victims whose eviction is not necessary, the most expensive first.
func (s *Search) prune() {
	slices.SortFunc(s.set, func(a, b int) int { return cmp.Or(cmp.Compare(s.list[b].Cost, s.list[a].Cost), cmp.Compare(a, b)) })
	kept := s.set[:0]
	for _, i := range s.set {
		res, gpus := s.rules.Frees(i)
		if s.trial.Take(res, gpus); s.fits() {
			continue
		}
		s.trial.Give(res, gpus)
		kept = append(kept, i)
	}
	s.set = kept
	slices.Sort(s.set)
}

// byGPU selects the victims on the GPUs that are cheapest to free.
func (s *Search) byGPU() {
	s.per = s.per[:0]
	for g, gpu := range s.room.GPUs() {
		s.reset()
		ok := s.trial.FitsGPU(g, s.needs.GPUMemory)
		for i := 0; i < len(s.list) && !ok; i++ {
			if _, on := s.rules.Frees(i); slices.Contains(on, gpu.Index) && s.add(i) {
				ok = s.trial.FitsGPU(g, s.needs.GPUMemory)
			}
		}
		if ok {
			s.per = append(s.per, gpuVictims{slices.Clone(s.set), s.total()})
		}
	}
	slices.SortStableFunc(s.per, func(a, b gpuVictims) int { return cmp.Compare(a.loss, b.loss) })
	s.reset()
	s.marks = append(s.marks[:0], make([]bool, len(s.list))...)
	for _, p := range s.per[:min(len(s.per), s.needs.GPUs)] {
		for _, i := range p.set {
			if !s.marks[i] {
				s.marks[i] = true
				s.add(i)
			}
		}
	}
	// Host memory, processors or pods may still be short.
	for i := 0; i < len(s.list) && !s.fits(); i++ {
		if !s.marks[i] {
			s.marks[i] = true
			s.add(i)
		}
	}
}
