package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// How the functions of a trace become the models there are.
const (
	MapAuto  = "auto"        // name where the trace names functions, zipf where it names none
	MapName  = "name"        // the model of the same name; one that is not there is an error
	MapKnown = "known"       // the same, and what is not there is left out
	MapRank  = "rank"        // the most asked for becomes the first model, and so on, around
	MapRound = "round-robin" // in the order of their appearance; where none is named, request by request
	MapZipf  = "zipf"        // each request a model drawn by Zipf's law (1.1), the first model the likeliest
)

// Maps are their names, as people choose them.
var Maps = []string{MapAuto, MapName, MapKnown, MapRank, MapRound, MapZipf}

// Mapped is a trace whose requests name models that there are.
type Mapped struct {
	Read  Requests
	How   string // one of Maps, never auto
	Uses  []Use  // by model; of MapZipf none
	Left  int64  // requests that are left out
	Names int    // of functions that were left out
}

// Onto maps the trace onto models, which are not empty and whose order counts
// for rank, round-robin and zipf.
func (t *Trace) Onto(models []functions.Name, how string, seed uint64) (*Mapped, error) {
	if !slices.Contains(Maps, how) {
		hint := ""
		if near := functions.Nearest(how, Maps, 1); len(near) > 0 {
			hint = "; did you mean " + near[0] + "?"
		}
		return nil, fmt.Errorf("%q is no way to map a trace%s (%s)", functions.Clip(how), hint, strings.Join(Maps, ", "))
	}
	named := len(t.Uses) > 0
	if how == MapAuto {
		if how = MapName; !named {
			how = MapZipf
		}
	}
	m := &Mapped{How: how}
	if how == MapZipf {
		m.Read = dealt(t.read, models, seed)
		return m, nil
	}
	if !named {
		if how != MapRound {
			return nil, fmt.Errorf("the trace names no functions: it can be mapped by %s or %s", MapZipf, MapRound)
		}
		m.Read = inTurn(t.read, models)
		return m, nil
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

// targets maps the trace's functions to models by m.How, and counts in m what is left out.
func (t *Trace) targets(m *Mapped, models []functions.Name) (map[functions.Name]functions.Name, error) {
	to := make(map[functions.Name]functions.Name, len(t.Uses))
	switch m.How {
	case MapRank:
		for i, u := range ByUse(t.Uses) {
			to[u.Name] = models[i%len(models)]
		}
	case MapRound:
		for i, u := range t.Uses {
			to[u.Name] = models[i%len(models)]
		}
	default:
		known := make(map[functions.Name]bool, len(models))
		for _, n := range models {
			known[n] = true
		}
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
			return nil, fmt.Errorf("%d of the %d functions in the trace are no models here: %s%s; --map says what becomes of them: %s leaves them out, %s and %s deal them among the models",
				m.Names, len(t.Uses), strings.Join(unknown, ", "), ellipsis(m.Names, len(unknown)), MapKnown, MapRank, MapRound)
		}
	}
	return to, nil
}

func ellipsis(all, shown int) string {
	if all > shown {
		return ", …"
	}
	return ""
}

// inTurn gives each request the next model.
func inTurn(read Requests, models []functions.Name) Requests {
	return func(yield func(Request, error) bool) {
		i := 0
		for r, err := range read {
			r.Function = models[i%len(models)]
			i++
			if !yield(r, err) {
				return
			}
		}
	}
}

// dealt gives each request a model by Zipf's law.
func dealt(read Requests, models []functions.Name, seed uint64) Requests {
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
