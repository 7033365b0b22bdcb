package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

const (
	MapAuto  = "auto"  // name if the trace names functions, else zipf
	MapName  = "name"  // the model of the same name; a missing one is an error
	MapKnown = "known" // the model of the same name; requests for missing ones are dropped
	MapRank  = "rank"  // the n-th most requested function becomes the n-th model, modulo their number
	MapZipf  = "zipf"  // each request draws a model by Zipf's law (1.1), the first model the likeliest
)

// Maps are the names of the ways, for flags.
var Maps = []string{MapAuto, MapName, MapKnown, MapRank, MapZipf}

// Mapped is a trace whose requests name existing models.
type Mapped struct {
	Read  Requests
	How   string // one of Maps, never auto
	Uses  []Use  // by model; empty for MapZipf
	Left  int64  // dropped requests
	Names int    // dropped functions
}

// Onto maps the trace to models, which must not be empty. Their order matters for rank
// and zipf.
func (t *Trace) Onto(models []functions.Name, how string, seed uint64) (*Mapped, error) {
	if !slices.Contains(Maps, how) {
		return nil, functions.UnknownWord(how, "way to map a trace", Maps)
	}
	named := len(t.Uses) > 0
	if how == MapAuto {
		if how = MapName; !named {
			how = MapZipf
		}
	}
	m := &Mapped{How: how}
	if how == MapZipf {
		m.Read = dealRequests(t.read, models, seed)
		return m, nil
	}
	if !named {
		return nil, fmt.Errorf("the trace names no functions: it can be mapped by %s alone", MapZipf)
	}
	to, err := t.targets(m, models)
	if err != nil {
		return nil, err
	}
	uses := map[functions.Name]int64{}
	for _, u := range t.Uses {
		if n, ok := to[u.Name]; ok {
			uses[n] += u.Requests
		}
	}
	for _, n := range models {
		if uses[n] > 0 {
			m.Uses = append(m.Uses, Use{n, uses[n]})
		}
	}
	m.Read = func(yield func(Request, error) bool) {
		for r, err := range t.read {
			if err == nil {
				var ok bool
				if r.Function, ok = to[r.Function]; !ok {
					continue
				}
			}
			if !yield(r, err) {
				return
			}
		}
	}
	return m, nil
}

// targets maps functions to models by m.How, and counts in m the dropped ones.
func (t *Trace) targets(m *Mapped, models []functions.Name) (map[functions.Name]functions.Name, error) {
	to := make(map[functions.Name]functions.Name, len(t.Uses))
	switch m.How {
	case MapRank:
		for i, u := range ByUse(t.Uses) {
			to[u.Name] = models[i%len(models)]
		}
	default:
		known := functions.SetOf(models, func(n functions.Name) functions.Name { return n })
		var unknown []string
		for _, u := range t.Uses {
			if base := u.Name.WithoutAdapter(); known[base] {
				to[u.Name] = base
				continue
			}
			m.Left += u.Requests
			m.Names++
			if len(unknown) < 3 {
				unknown = append(unknown, u.Name.String())
			}
		}
		if m.Names > 0 && (m.How == MapName || len(to) == 0) {
			if m.Names > len(unknown) {
				unknown = append(unknown, "…")
			}
			return nil, fmt.Errorf("%d of the %d functions in the trace are no models here: %s; --map says what becomes of them: %s leaves "+
				"them out, %s deals them among the models",
				m.Names, len(t.Uses), strings.Join(unknown, ", "), MapKnown, MapRank)
		}
	}
	return to, nil
}

// dealRequests assigns each request to a model drawn by Zipf's law.
func dealRequests(read Requests, models []functions.Name, seed uint64) Requests {
	upTo := make([]float64, len(models))
	sum := 0.0
	for i := range upTo {
		sum += math.Pow(float64(i+1), -float64(DefaultSpec.Zipf))
		upTo[i] = sum
	}
	return func(yield func(Request, error) bool) {
		draw := rand.New(rand.NewPCG(seed, 0x6465_616c))
		for r, err := range read {
			i, _ := slices.BinarySearch(upTo, draw.Float64()*sum)
			r.Function = models[min(i, len(models)-1)]
			if !yield(r, err) {
				return
			}
		}
	}
}
