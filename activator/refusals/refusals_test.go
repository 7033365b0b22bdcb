package refusals

import (
	"fmt"
	"testing"
)

// TestRefusalKinds: the kinds that are counted in a second are bounded.
func TestRefusalKinds(t *testing.T) {
	var r Log
	for i := range 10 * maxKinds {
		r.logs(refusal{team: fmt.Sprint(i), code: 401})
	}
	if n := len(r.kinds); n != maxKinds+1 {
		t.Errorf("%d kinds", n)
	}
}
