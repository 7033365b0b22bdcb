package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/fake"
)

// streamsSettle is the delay before the memory of held streams is read: by then each has
// its status 200 and a comment.
const streamsSettle = 15 * time.Second

// held measures the memory of requests queued for a loading engine. Each kind gets a
// fresh platform: an already grown heap would hide the cost.
func (b *bench) held(ctx context.Context) error {
	for _, stream := range []bool{false, true} {
		h, err := b.heldOnce(ctx, stream)
		if err != nil {
			return fmt.Errorf("held, stream=%v: %w", stream, err)
		}
		b.result.Held = append(b.result.Held, h)
		b.Progress(fmt.Sprintf("%d held, stream=%v: %.1f KiB each", h.Requests, stream, h.PerRequest/1024))
	}
	return nil
}

func (b *bench) heldOnce(ctx context.Context, stream bool) (Held, error) {
	h := Held{Stream: stream, Requests: b.Held}
	p, key, _, err := b.platform(ctx, fmt.Sprintf("thaw-held-%v", stream))
	if err != nil {
		return h, err
	}
	defer p.End()
	// One ordinary request pages in code and tables.
	if _, err := requestOnce(ctx, p.Addr, load.Request{Model: warmModel, Key: key}, fake.PlainBody()); err != nil {
		return h, err
	}
	if h.Before, err = process.RSS(p.Process.PID); err != nil {
		return h, err
	}
	conns, err := sendAll(ctx, p, load.Request{Model: heldModel, Key: key, Stream: stream, Size: bodySize}, b.Held)
	defer closeAll(conns)
	if err != nil {
		return h, err
	}
	if stream {
		select {
		case <-time.After(streamsSettle):
		case <-ctx.Done():
			return h, ctx.Err()
		}
	}
	if h.After, err = process.RSS(p.Process.PID); err != nil {
		return h, err
	}
	h.PerRequest = float64(h.After-h.Before) / float64(b.Held)
	left := time.Now()
	closeAll(conns)
	if err := buffered(ctx, p, 0); err != nil {
		return h, err
	}
	h.Left = time.Since(left).Seconds()
	return h, nil
}

// sendAll sends n requests, each on its own connection, and returns when the platform
// reports that it holds all. The caller closes the connections, also after an error.
func sendAll(ctx context.Context, p *served.Platform, a load.Request, n int) ([]*load.Conn, error) {
	req := a.Bytes()
	conns := make([]*load.Conn, 0, n)
	for range n {
		k, err := load.Dial(ctx, p.Addr)
		if err != nil {
			return conns, err
		}
		conns = append(conns, k)
		if err := k.Send(req); err != nil {
			return conns, err
		}
	}
	return conns, buffered(ctx, p, n)
}

func closeAll(conns []*load.Conn) {
	for _, k := range conns {
		k.Close()
	}
}

// buffered waits until the platform holds exactly n requests.
func buffered(ctx context.Context, p *served.Platform, n int) error {
	const within = time.Minute
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		have, err := metric(ctx, p, "thaw_buffered_requests")
		if err != nil {
			return err
		}
		if int(have) == n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%v requests held after %s, want %d: %s", have, within, n, p.Process.Tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// metric returns the sum of a metric's series.
func metric(ctx context.Context, p *served.Platform, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+p.Token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("GET /metrics: %s", res.Status)
	}
	return sumSeries(io.LimitReader(res.Body, 16<<20), name)
}

// sumSeries sums the series of a metric in Prometheus text format.
func sumSeries(r io.Reader, name string) (float64, error) {
	total := 0.0
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		rest, ok := strings.CutPrefix(s.Text(), name)
		if !ok || rest == "" || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		f := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
		if len(f) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.Text(), err)
		}
		total += v
	}
	return total, s.Err()
}

// wakes measures the release of a queued request and the start from zero: the function
// is scaled to zero and woken by one plain request, Wakes times.
func (b *bench) wakes(ctx context.Context) error {
	p, key, _, err := b.platform(ctx, "thaw-wakes")
	if err != nil {
		return err
	}
	defer p.End()
	var first, total, own []float64
	for i := range b.Wakes {
		took, arrived, err := b.wake(ctx, p, key)
		if err != nil {
			return fmt.Errorf("wake %d: %w: %s", i+1, err, p.Process.Tail())
		}
		total, first = append(total, took), append(first, arrived)
		// Interleaved, so that both run under the same conditions.
		if len(own) < ownStarts && i%max(1, b.Wakes/ownStarts) == 0 {
			alone, err := b.own(ctx, i)
			if err != nil {
				return err
			}
			own = append(own, alone)
		}
	}
	b.result.Release = &Release{Wakes: b.Wakes, First: report.Summarize(first)}
	z := &ZeroToOne{Total: report.Summarize(total), Own: report.Summarize(own)}
	z.Added = z.Total.P50 - z.Own.P50
	b.result.ZeroToOne = z
	b.Progress(fmt.Sprintf("%d wakes: %s to the first held byte (p99), %s to the answer (p50), %s of it the engine's own", b.Wakes,
		report.Millis(b.result.Release.First.P99), report.Millis(z.Total.P50), report.Millis(z.Own.P50)))
	return nil
}

// wake scales the function to zero and sends one request. It returns seconds: from the
// request to its answer, and by the engine's clock from its readiness to the request's
// arrival.
func (b *bench) wake(ctx context.Context, p *served.Platform, key string) (took, arrived float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := p.Stop(ctx, warmFunction); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	a, err := requestOnce(ctx, p.Addr, load.Request{Model: warmModel, Key: key}, fake.PlainBody())
	if err != nil {
		return 0, 0, err
	}
	s, err := stats(ctx, p, warmFunction)
	if err != nil {
		return 0, 0, err
	}
	return a.End.Sub(began).Seconds(), time.Duration(s.FirstArrival - s.WarmedAt).Seconds(), nil
}

// stats reads the counters of the engine of a function's only replica.
func stats(ctx context.Context, p *served.Platform, of functions.Name) (fake.Stats, error) {
	var s fake.Stats
	rs, err := p.Replicas(ctx, of)
	if err != nil {
		return s, err
	}
	if len(rs) != 1 {
		return s, fmt.Errorf("%s has %d replicas, want 1", of, len(rs))
	}
	if err := p.Stats(ctx, rs[0], &s); err != nil {
		return s, err
	}
	if s.WarmedAt == 0 || s.FirstArrival == 0 {
		return s, fmt.Errorf("the engine of %s saw no warm-up before its first request: %+v", of, s)
	}
	return s, nil
}

// waiters measures when the last of many queued requests reaches an engine that became
// ready. All are queued before that.
func (b *bench) waiters(ctx context.Context) error {
	p, key, readyFile, err := b.platform(ctx, "thaw-waiters")
	if err != nil {
		return err
	}
	defer p.End()
	var last []float64
	for range b.Turns {
		s, err := b.release(ctx, p, key, readyFile)
		if err != nil {
			return fmt.Errorf("%d waiters: %w: %s", b.Waiters, err, p.Process.Tail())
		}
		last = append(last, time.Duration(s.LastArrival-s.WarmedAt).Seconds())
	}
	if b.result.Release == nil {
		b.result.Release = &Release{}
	}
	b.result.Release.Waiters, b.result.Release.Last = b.Waiters, report.Summarize(last)
	b.Progress(fmt.Sprintf("the last of %d waiters after %s (median)", b.Waiters, report.Millis(b.result.Release.Last.P50)))
	return nil
}

func (b *bench) release(ctx context.Context, p *served.Platform, key, readyFile string) (fake.Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := p.Stop(ctx, held); err != nil {
		return fake.Stats{}, err
	}
	if err := os.Remove(readyFile); err != nil && !os.IsNotExist(err) {
		return fake.Stats{}, err
	}
	conns, err := sendAll(ctx, p, load.Request{Model: heldModel, Key: key, Size: bodySize}, b.Waiters)
	defer closeAll(conns)
	if err != nil {
		return fake.Stats{}, err
	}
	if err := os.WriteFile(readyFile, nil, 0o600); err != nil {
		return fake.Stats{}, err
	}
	stop := context.AfterFunc(ctx, func() { closeAll(conns) })
	defer stop()
	check := load.Exactly(fake.PlainBody())
	errs := make([]error, len(conns))
	var wg sync.WaitGroup
	for i, k := range conns {
		wg.Go(func() {
			a, err := k.Read()
			if err == nil {
				err = check(a)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fake.Stats{}, err
		}
	}
	return stats(ctx, p, held)
}
