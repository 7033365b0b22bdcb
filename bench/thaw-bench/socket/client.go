package socket

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	ping  = "__ping__"
	dials = 32 // at a time
)

// client is one socket, used by one goroutine.
type client struct {
	ws   *websocket.Conn
	pong string
}

// frame is what thaw sends.
type frame struct {
	Type     string `json:"type"`
	New      string `json:"new"`
	Prepares string `json:"prepares"`
	Target   string `json:"target"`
	Model    string `json:"model"`
	Cold     bool   `json:"cold"`
	Code     string `json:"code"`
	Message  string `json:"message"`
}

func (s *server) dial(ctx context.Context, id int) (*client, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, fmt.Sprintf("ws://%s/ws/client-%d", s.addr, id),
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + s.key}}})
	if err != nil {
		return nil, err
	}
	return &client{ws, s.pong()}, nil
}

// dialAll opens n sockets that have each been answered. The caller closes those returned,
// also after an error.
func (s *server) dialAll(ctx context.Context, n int) ([]*client, error) {
	all := make([]*client, n)
	err := forEach(dials, n, func(i int) (err error) {
		if all[i], err = s.dial(ctx, i); err == nil {
			err = all[i].ping(ctx)
		}
		return err
	})
	return all, err
}

func closeAll(all []*client) {
	for _, c := range all {
		if c != nil {
			c.ws.CloseNow()
		}
	}
}

// forEach calls f for 0 to n-1, up to workers at a time, until one fails.
func forEach(workers, n int, f func(i int) error) error {
	var mu sync.Mutex
	var first error
	next := 0
	var wg sync.WaitGroup
	for range min(workers, n) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				failed := first != nil
				mu.Unlock()
				if failed || i >= n {
					return
				}
				if err := f(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

func (c *client) send(ctx context.Context, text string) error {
	return c.ws.Write(ctx, websocket.MessageText, []byte(text))
}

// ping sends a ping and reads up to its answer, which comes behind those of all before it.
func (c *client) ping(ctx context.Context) error { return c.pingSeeing(ctx, func(frame) {}) }

// pingSeeing is ping, and sees the frames before the answer.
func (c *client) pingSeeing(ctx context.Context, see func(frame)) error {
	if err := c.send(ctx, ping); err != nil {
		return err
	}
	for {
		_, b, err := c.ws.Read(ctx)
		if err != nil {
			return err
		}
		if string(b) == c.pong {
			return nil
		}
		var f frame
		if c.pong == ping || json.Unmarshal(b, &f) != nil {
			continue
		}
		if f.Type == "error" {
			return fmt.Errorf("%s: %s", f.Code, f.Message)
		}
		see(f)
	}
}

// until reads frames up to one of a kind.
func (c *client) until(ctx context.Context, kind string) (f frame, err error) {
	for {
		_, b, err := c.ws.Read(ctx)
		if err != nil {
			return f, err
		}
		f = frame{}
		switch err := json.Unmarshal(b, &f); {
		case err != nil:
			return f, err
		case f.Type == kind:
			return f, nil
		case f.Type == "error":
			return f, fmt.Errorf("%s: %s", f.Code, f.Message)
		}
	}
}

// prefixes are a text as it is when each of its words has been typed.
func prefixes(text string) []string {
	var list []string
	for i := range text {
		if text[i] == ' ' {
			list = append(list, text[:i+1])
		}
	}
	return append(list, text+" ")
}

// typeText types a text, a word each time every fires, and waits until all has been read.
func (c *client) typeText(ctx context.Context, text string, every <-chan time.Time) (words int, err error) {
	for _, p := range prefixes(text) {
		select {
		case <-every:
		case <-ctx.Done():
			return words, ctx.Err()
		}
		if err := c.send(ctx, p); err != nil {
			return words, err
		}
		words++
	}
	return words, c.ping(ctx)
}
