package engine

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
)

// healthSlow is when a request for the health counts as slow: it stays open, and others
// are sent beside it, because a half-loaded engine may have lost it.
const healthSlow = 2 * time.Second

// modelsPath is the list of models of OpenAI's API.
const modelsPath = "/v1/models"

// Health is nil when the health path answers 2xx, or the list of models of an engine that may have
// no health path. One redirect on the same host and port is followed.
func (c *Client) Health(ctx context.Context) error {
	path := c.health
	_, err := c.do(ctx, http.MethodGet, path, nil, 4<<10)
	var se *StatusError
	if errors.As(err, &se) {
		if to := c.redirect(path, se); to != "" {
			path = to
			_, err = c.do(ctx, http.MethodGet, path, nil, 4<<10)
		} else if c.mayLackHealth(se) {
			if _, other := c.do(ctx, http.MethodGet, modelsPath, nil, maxProbeAnswer); other == nil {
				path, err = modelsPath, nil
			}
		}
	}
	switch {
	case err == nil:
		c.answered(path, "2xx")
	case errors.As(err, &se):
		c.answered(path, se.Error()+c.healthHint(se))
	case ctx.Err() == nil || errors.Is(err, context.DeadlineExceeded):
		c.unanswered(path, err)
	}
	return err
}

// mayLackHealth reports whether the engine may have no health path, so that its list of models shows
// that it listens: the model file names no path, and a request for a token shows that it generates.
func (c *Client) mayLackHealth(se *StatusError) bool {
	return c.engine == functions.EngineCommand && c.health == functions.DefaultHealth && len(c.probes) > 0 &&
		(se.Status == http.StatusNotFound || se.Status == http.StatusMethodNotAllowed)
}

// keyHint is what a model file says about an engine that refuses thaw's key, or the lack of one.
func (c *Client) keyHint() string {
	if c.key != "" {
		return " (thaw sends the key that {key} in env stands for, and the engine takes another: leave that out of args and env)"
	}
	return " (thaw sends no key: start the engine without one, or put {key} into env as the variable that it reads its key from)"
}

// healthHint is what a model file says about a health path that is answered so.
func (c *Client) healthHint(se *StatusError) string {
	switch {
	case c.engine != functions.EngineCommand:
		return ""
	case strings.Contains(se.Body, "HTTPS"):
		return " (thaw asks by HTTP: start the engine without its certificate)"
	case se.Denied():
		return c.keyHint()
	case se.Status < 500 && !se.Busy():
		return " (health: PATH in the model file names what it answers with 2xx)"
	}
	return ""
}

// unanswered notes why there is no answer, for the message of a start that failed.
func (c *Client) unanswered(path string, err error) {
	addr := strings.TrimPrefix(c.url, "http://")
	text := "what listens on " + addr + " closes connections without an answer (thaw asks by HTTP, without TLS)"
	switch {
	case ConnectionRefused(err):
		text = "nothing listens on " + addr + ", which it was given as its address ({port} in args; localhost may be ::1 alone)"
	case strings.Contains(err.Error(), "malformed HTTP"):
		text = "what listens on " + addr + " does not speak HTTP"
	case errors.Is(err, context.DeadlineExceeded):
		text = "it accepts connections on " + addr + ", and does not answer GET " + path
	}
	text = "no answer: " + text
	c.noAnswer.Store(&text)
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

// LastAnswer describes the last answer to Health or Token, or why there was none, for the message
// of a start that failed; "" if nothing was asked yet.
func (c *Client) LastAnswer() string {
	for _, p := range []*string{c.lastAnswer.Load(), c.noAnswer.Load()} {
		if p != nil {
			return *p
		}
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
