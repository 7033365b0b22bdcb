package simulate_test

import "slices"

// Shrink reduces an experiment while it still fails: it removes ever smaller groups of faults
// (Zeller's ddmin), then models, teams and hosts, and lowers the counts of the rest. It
// calls fails at most tries times.
func Shrink(s Experiment, tries int, fails func(Experiment) bool) Experiment {
	try := func(next Experiment) bool {
		if tries <= 0 {
			return false
		}
		tries--
		if !fails(next) {
			return false
		}
		s = next
		return true
	}
	for more := true; more && tries > 0; {
		more = false
		for size := (len(s.Faults) + 1) / 2; size > 0; size /= 2 {
			for at := 0; at < len(s.Faults); {
				next := s
				next.Faults = slices.Delete(slices.Clone(s.Faults), at, min(at+size, len(s.Faults)))
				if try(next) {
					more = true
				} else {
					at += size
				}
			}
		}
		for i := len(s.Models) - 1; i >= 0 && len(s.Models) > 1; i-- {
			// Only the last model: faults name models by index.
			if i == len(s.Models)-1 {
				next := s
				next.Models = slices.Clone(s.Models[:i])
				more = try(next) || more
			}
		}
		for i := len(s.Hosts) - 1; i > 0 && i == len(s.Hosts)-1; i-- {
			next := s
			next.Hosts = slices.Clone(s.Hosts[:i])
			more = try(next) || more
		}
		for i := len(s.Teams) - 1; i >= 0; i-- {
			next := s
			next.Teams = slices.Delete(slices.Clone(s.Teams), i, i+1)
			more = try(next) || more
		}
		for i := range s.Faults {
			if s.Faults[i].N <= 1 || s.Faults[i].Do != requestBurst {
				continue
			}
			next := s
			next.Faults = slices.Clone(s.Faults)
			next.Faults[i].N = 1
			more = try(next) || more
		}
	}
	return s
}
