package upstream

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Traffic reports the exchanges with an address that are under way, and when it last
// sent a byte.
func (c *Client) Traffic(addr string) functions.Traffic {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.conns[addr]))
	last := c.lastBytes[addr]
	c.mu.Unlock()
	var t functions.Traffic
	if last != nil {
		t.LastByte = unixTime(last.Load())
	}
	for _, k := range all {
		sent := k.sentAt.Load()
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

// lastByteLocked is the time of the last byte of an address, in unix nanoseconds; all its
// connections share it. The client's mu is held.
func (c *Client) lastByteLocked(addr string) *atomic.Int64 {
	if c.lastBytes[addr] == nil {
		c.lastBytes[addr] = new(atomic.Int64)
	}
	return c.lastBytes[addr]
}
