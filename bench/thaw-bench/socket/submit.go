package socket

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// Submit is one way to a warm model: the time to the first token, and the processor time
// of thaw for a whole generation.
type Submit struct {
	Name   string         `json:"name"`
	First  report.Summary `json:"first_token_seconds"`
	Micros []float64      `json:"cpu_us_per_generation,omitempty"` // one per round
	Median float64        `json:"median_us,omitempty"`
}

// Names of the ways.
const (
	bySocket = "submit on a socket"
	byStream = "stream over HTTP"
	byEngine = "stream of the engine itself"
)

const (
	submitConns = 16 // one after the other: a socket takes 200 messages a second
	submitText  = "where is the answer to this question"
)

// measureSubmits measures one generation at a time, in turns.
func measureSubmits(ctx context.Context, o *Options) ([]Submit, error) {
	intents := makeIntents(o.Intents)
	s, err := o.startThaw(ctx, "submit", intents, 0)
	if err != nil {
		return nil, err
	}
	defer s.end()
	clients, err := s.dialAll(ctx, submitConns)
	defer closeAll(clients)
	if err != nil {
		return nil, err
	}
	if _, err := submit(ctx, clients[0]); err != nil { // the model starts
		return nil, fmt.Errorf("%w: %s", err, s.process.Tail())
	}
	replica, err := s.platform.Ready(ctx, functions.Name{Team: functions.DefaultTeam, Name: warmModel})
	if err != nil {
		return nil, err
	}
	list := []Submit{{Name: bySocket}, {Name: byStream}, {Name: byEngine}}
	first := make([][]float64, len(list))
	ways := []func(i int) (float64, error){func(i int) (float64, error) { return submit(ctx, clients[i]) }}
	for _, addr := range []string{s.addr, strings.TrimPrefix(replica.Endpoint, "http://")} {
		conns := make([]*load.Conn, submitConns)
		for i := range conns {
			if conns[i], err = load.Dial(ctx, addr); err != nil {
				return nil, err
			}
			defer func() { conns[i].Close() }()
		}
		request := streamRequest(s.key)
		ways = append(ways, func(i int) (float64, error) { return stream(ctx, conns[i], request) })
	}
	for round := range o.Rounds + 1 { // the first one warms up
		for i := range list {
			i = (i + round) % len(list)
			before, err := process.CPU(s.process.PID)
			if err != nil {
				return nil, err
			}
			for n := range o.Submits {
				took, err := ways[i](n % submitConns)
				if err != nil {
					return nil, fmt.Errorf("%s: %w: %s", list[i].Name, err, s.process.Tail())
				}
				if round > 0 {
					first[i] = append(first[i], took)
				}
			}
			after, err := process.CPU(s.process.PID)
			if err != nil {
				return nil, err
			}
			micros := float64((after - before).Microseconds()) / float64(o.Submits)
			if round > 0 && list[i].Name != byEngine {
				list[i].Micros = append(list[i].Micros, micros)
			}
			o.Progress(fmt.Sprintf("submit, round %d of %d: %-27s %7.1f µs of thaw", round, o.Rounds, list[i].Name, micros))
		}
	}
	for i := range list {
		list[i].First, list[i].Median = report.Summarize(first[i]), report.Quantile(list[i].Micros, 0.5)
	}
	return list, nil
}

// submit sends a text, and returns the time to the first token in seconds when the
// generation is complete.
func submit(ctx context.Context, c *client) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, platformStart)
	defer cancel()
	b, err := json.Marshal(map[string]string{"type": "submit", "text": submitText})
	if err != nil {
		return 0, err
	}
	return c.generate(ctx, string(b))
}

// generate sends a submit, and returns the time to the first token in seconds when the
// generation is complete.
func (c *client) generate(ctx context.Context, submit string) (float64, error) {
	began := time.Now()
	if err := c.send(ctx, submit); err != nil {
		return 0, err
	}
	if _, err := c.until(ctx, "token"); err != nil {
		return 0, err
	}
	took := time.Since(began).Seconds()
	_, err := c.until(ctx, "generation_complete")
	return took, err
}

// streamRequest is the request that a submit makes.
func streamRequest(key string) []byte {
	body := `{"model":"auto","messages":[{"role":"user","content":"` + submitText + `"}],"stream":true,"stream_options":{"include_usage":true}}`
	return []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer " + key +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

func stream(ctx context.Context, k *load.Conn, request []byte) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, platformStart)
	defer cancel()
	began := time.Now()
	a, err := k.Do(ctx, request)
	if err == nil && (a.Status != 200 || a.First.IsZero()) {
		err = fmt.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	return a.First.Sub(began).Seconds(), err
}
