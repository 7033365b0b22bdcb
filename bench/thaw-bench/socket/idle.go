package socket

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/thaw-dev/thaw/bench/process"
)

// Idle is the resident memory of a server with idle sockets, in bytes.
type Idle struct {
	Server    string  `json:"server"`
	Sockets   int     `json:"sockets"`
	Before    int64   `json:"rss_before_bytes"`
	Connected float64 `json:"bytes_per_connected_socket"`
	Typed     float64 `json:"bytes_per_socket_that_has_typed"`
	GoneAway  int     `json:"closed_by_1001"` // when the server was ended
}

const warmUpSockets = 50

// measureIdle measures thaw and the echo server with each number of sockets.
func measureIdle(ctx context.Context, o *Options) ([]Idle, error) {
	var list []Idle
	intents := makeIntents(3)
	for _, n := range o.Idle {
		for _, start := range []func() (*server, error){
			func() (*server, error) { return o.startThaw(ctx, fmt.Sprintf("idle-%d", n), intents, 0) },
			func() (*server, error) { return o.startEcho(ctx) },
		} {
			s, err := start()
			if err != nil {
				return list, err
			}
			x, err := s.measureIdle(ctx, n, intents)
			s.end()
			if err != nil {
				return list, fmt.Errorf("%s, %d sockets: %w: %s", s.name, n, err, s.process.Tail())
			}
			list = append(list, x)
			o.Progress(fmt.Sprintf("%d sockets, %s: %.1f KiB each, %.1f KiB when it has typed", n, s.name, x.Connected/1024, x.Typed/1024))
		}
	}
	return list, nil
}

func (s *server) measureIdle(ctx context.Context, n int, intents []intent) (x Idle, err error) {
	x = Idle{Server: s.name, Sockets: n}
	first, err := s.dialAll(ctx, warmUpSockets)
	closeAll(first)
	if err != nil {
		return x, err
	}
	if x.Before, err = process.RSS(s.process.PID); err != nil {
		return x, err
	}
	all, err := s.dialAll(ctx, n)
	defer closeAll(all)
	if err != nil {
		return x, err
	}
	connected, err := process.RSS(s.process.PID)
	if err != nil {
		return x, err
	}
	now := make(chan time.Time)
	close(now) // as fast as it goes
	if err = forEach(dials, n, func(i int) error {
		_, err := all[i].typeText(ctx, intents[i%len(intents)].text, now)
		return err
	}); err != nil {
		return x, err
	}
	typed, err := process.RSS(s.process.PID)
	if err != nil {
		return x, err
	}
	x.Connected, x.Typed = float64(connected-x.Before)/float64(n), float64(typed-x.Before)/float64(n)
	if s.platform == nil {
		return x, nil
	}
	var gone atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, platformStart)
	defer cancel()
	for _, c := range all {
		wg.Go(func() {
			_, _, err := c.ws.Read(ctx)
			if websocket.CloseStatus(err) == websocket.StatusGoingAway {
				gone.Add(1)
			}
		})
	}
	s.end()
	wg.Wait()
	x.GoneAway = int(gone.Load())
	return x, nil
}
