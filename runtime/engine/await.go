package engine

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
)

// healthSlow is when a request for the health counts as slow: it stays open, and others
// are sent beside it, because a half-loaded engine may have lost it.
const healthSlow = 2 * time.Second

// Health is nil when the health path answers 2xx. One redirect on the same host and port
// is followed.
func (c *Client) Health(ctx context.Context) error {
	path := c.health
	_, err := c.do(ctx, http.MethodGet, path, nil, 4<<10)
	var se *StatusError
	if errors.As(err, &se) {
		if to := c.redirect(path, se); to != "" {
			path = to
			_, err = c.do(ctx, http.MethodGet, path, nil, 4<<10)
		}
	}
	if err == nil {
		c.answered(path, "2xx")
	} else if errors.As(err, &se) {
		c.answered(path, se.Error())
	}
	return err
}

// redirect is the path that an answer redirects to, on the same host and port; "" if it
// does not.
func (c *Client) redirect(path string, se *StatusError) string {
	if se.Status/100 != 3 || se.To == "" {
		return ""
	}
	base, err := url.Parse(c.url + path)
	if err != nil {
		return ""
	}
	to, err := base.Parse(se.To)
	if err != nil || to.Scheme != base.Scheme || to.Host != base.Host || to.User != nil {
		return ""
	}
	return to.RequestURI()
}

// LastAnswer describes the last answer to Health or Token, for the message of a start that
// failed; "" if there was none.
func (c *Client) LastAnswer() string {
	if p := c.lastAnswer.Load(); p != nil {
		return *p
	}
	return ""
}

func (c *Client) answered(path, text string) {
	text = path + " answered " + text
	c.lastAnswer.Store(&text)
}

// Await returns nil when the health path answers 2xx, or the last error when ctx
// ends. It calls listening once, when a connection is first accepted.
func (c *Client) Await(ctx context.Context, listening func()) error {
	var requests sync.WaitGroup
	defer requests.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ask := func(bound time.Duration) <-chan error {
		answer := make(chan error, 1)
		requests.Go(func() {
			one, cancel := ctx, context.CancelFunc(func() {})
			if bound > 0 {
				one, cancel = context.WithTimeout(ctx, bound)
			}
			defer cancel()
			answer <- c.Health(one)
		})
		return answer
	}
	listening = sync.OnceFunc(listening)
	began, bound := time.Now(), healthSlow
	var slow <-chan error // the answer to a request that is slow; nil: there is none
	for {
		var answer <-chan error
		var late <-chan time.Time
		if slow == nil {
			answer, late = ask(0), time.After(healthSlow)
		} else {
			answer = ask(bound)
			bound += bound / 4
		}
		var err error
		select {
		case err = <-answer:
		case err = <-slow:
			slow = nil
		case <-late:
			listening()
			slow = answer
			continue
		}
		if !ConnectionRefused(err) && ctx.Err() == nil {
			listening()
		}
		if err == nil {
			return nil
		}
		if !backoff.Sleep(ctx, ProbeInterval(time.Since(began))) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// ProbeInterval is the pause before the next probe of an engine that has been starting
// for elapsed: 1 % of it, at least 1 ms and at most 50 ms.
func ProbeInterval(elapsed time.Duration) time.Duration {
	return min(max(elapsed/100, time.Millisecond), 50*time.Millisecond)
}
