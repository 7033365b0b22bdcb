package study

import (
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// future is what a trace holds, to the second: of each function the seconds in
// which it is asked for.
type future map[functions.Name][]uint32

// foretell reads a trace to its end.
func foretell(read trace.Requests) (future, error) {
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

// next is when a function is asked for next after a time; 0 never again.
func (f future) next(name functions.Name, at time.Duration) time.Duration {
	list := f[name]
	i, _ := slices.BinarySearch(list, uint32(at/time.Second)+1)
	if i == len(list) {
		return 0
	}
	return time.Duration(list[i]) * time.Second
}
