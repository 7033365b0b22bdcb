package remote

import (
	"testing"
	"time"
)

// TestCircuit: the states of a circuit, by what requests prove.
func TestCircuit(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newCircuit()
	admit := func(want, wantProbe bool) (probe bool) {
		t.Helper()
		probe, wait, ok := c.admit(now)
		if ok != want || probe != wantProbe || ok == (wait > 0) {
			t.Fatalf("admitted %v, probe %v, wait %v", ok, probe, wait)
		}
		return probe
	}
	end := func(probe bool, o outcome, want circuitState) {
		t.Helper()
		c.end(probe, o, "reason", now)
		if c.state != want {
			t.Fatalf("state %s, want %s", circuitWords[c.state], circuitWords[want])
		}
	}
	end(false, failed, closed)
	end(false, failed, closed)
	end(false, good, closed) // not in a row
	end(false, failed, closed)
	end(false, unknown, closed)
	end(false, failed, closed)
	early := admit(true, false) // ends late
	end(false, failed, open)
	for pause := time.Second; pause <= 4*time.Second; pause *= 2 {
		admit(false, false)
		now = now.Add(pause - 1)
		admit(false, false)
		now = now.Add(1)
		probe := admit(true, true)
		admit(false, false) // one at a time
		end(early, failed, halfOpen)
		end(probe, failed, open)
	}
	for range 10 {
		now = now.Add(c.until.Sub(now))
		end(admit(true, true), failed, open)
	}
	if d := c.until.Sub(now); d != longestPause {
		t.Errorf("the pause has grown to %v", d)
	}
	now = now.Add(longestPause)
	end(admit(true, true), unknown, halfOpen) // its client left
	probe := admit(true, true)
	c.began(probe)
	admit(true, false) // others pass while the answer of the probe comes
	end(probe, failed, open)
	now = now.Add(longestPause)
	end(admit(true, true), good, closed)
	end(false, misconfigured, open) // at once
	if d := c.until.Sub(now); d != firstPause {
		t.Errorf("the pause begins with %v", d)
	}
	end(early, good, closed) // of a request that was sent before
}
