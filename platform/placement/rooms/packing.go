package rooms

import "github.com/thaw-dev/thaw/functions"

// Packing is the room of several nodes, in which replicas are placed one after the other.
type Packing []Room

// Place takes what a replica reserves on the first node that has room for it; false where
// none has.
func (p Packing) Place(res functions.Resources) bool {
	for i := range p {
		if gpus, ok := p[i].Choose(res); ok {
			p[i].Take(res, gpus)
			return true
		}
	}
	return false
}
