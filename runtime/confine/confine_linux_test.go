package confine

import "testing"

// TestCanChangeUser: root in a default container of Docker cannot give engines users of
// their own: it lacks CAP_DAC_READ_SEARCH.
func TestCanChangeUser(t *testing.T) {
	for _, x := range []struct {
		name, status string
		want         bool
	}{
		{"root", "Name:\tthaw\nCapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\n", true},
		{"docker run", "CapPrm:\t00000000a80425fb\nCapEff:\t00000000a80425fb\nCapBnd:\t000001ffffffffff\n", false},
		{"docker run --cap-add DAC_READ_SEARCH", "CapEff:\t00000000a80425ff\n", true},
		{"docker run --cap-drop SETUID", "CapEff:\t00000000a804257f\n", false},
		{"docker run --cap-add DAC_READ_SEARCH --cap-drop KILL", "CapEff:\t00000000a80425df\n", false},
		{"a user", "CapEff:\t0000000000000000\n", false},
		{"unknown", "", false},
		{"no number", "CapEff:\tx\n", false},
	} {
		if got := canChangeUser(x.status); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
}
