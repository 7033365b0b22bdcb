package upstream

import (
	"maps"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Traffic reports the exchanges with an address that are under way, and when it last
// sent a byte.
func (c *Client) Traffic(addr string) functions.Traffic {
	c.mu.Lock()
	p := c.peers[addr]
	if p == nil {
		c.mu.Unlock()
		return functions.Traffic{}
	}
	all := slices.Collect(maps.Keys(p.conns))
	c.mu.Unlock()
	t := functions.Traffic{LastByte: unixTime(p.lastByte.Load())}
	for _, k := range all {
		sent := k.begunAt.Load()
		if sent == 0 {
			continue
		}
		t.InFlight++
		if at := unixTime(sent); !k.bodyBegan.Load() && (t.Waiting.IsZero() || at.Before(t.Waiting)) {
			t.Waiting = at
		}
	}
	return t
}

// unixTime is a time from its unix nanoseconds; 0 is the zero time.
func unixTime(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}
