package study

import (
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

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
