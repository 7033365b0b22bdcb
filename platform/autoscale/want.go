package autoscale

import "math"

// Demand is the current demand for one function, with the bounds of its model file.
type Demand struct {
	Active, Queued  int  // requests at engines, and waiting ones
	Ready           int  // READY replicas
	Needed, Desired int  // as Load.Scale returned them
	Target          int  // requests that one replica serves at once
	Min, Max        int  // bounds of the model file
	Leased          bool // at least one replica is kept whatever the demand
}

// Want returns how many replicas a function should have. Unless s.Patient, waiting
// requests count at once and in full: the averaging windows behind Needed react
// too slowly for them.
func (s Settings) Want(d Demand) int {
	want := 0
	switch n := d.Active + d.Queued; {
	case s.Patient:
		want = d.Desired
	case n > 0:
		want = max(1, d.Needed)
		if d.Queued > 0 {
			up := math.Ceil(s.withDefaults().MaxUp * float64(max(d.Ready, 1)))
			want = max(want, int(min(math.Ceil(float64(n)/float64(max(d.Target, 1))), up)))
		}
	}
	if d.Leased {
		want = max(want, 1)
	}
	return min(max(want, d.Min), max(d.Max, d.Min))
}
