package starttime

import (
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestCold: a start from a store, measured there, as a whole, from another tier, or not.
func TestCold(t *testing.T) {
	measured := func(tier functions.Tier, d time.Duration) Expect {
		return Expect{Tier: map[functions.Tier]time.Duration{tier: d}}
	}
	for _, c := range []struct {
		what  string
		e     Expect
		whole time.Duration
		want  time.Duration
	}{
		{"measured from the store", measured(functions.TierNVMe, 30*time.Second), time.Minute, 30 * time.Second},
		{"measured as a whole", measured(functions.TierRemote, 30*time.Second), time.Minute, time.Minute},
		{"measured from the source", measured(functions.TierRemote, 30*time.Second), 0, 30 * time.Second},
		{"derived from the size", Expect{}, 0, Boot + 10*time.Second},
	} {
		if got := c.e.Cold(c.whole, 20<<30); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
