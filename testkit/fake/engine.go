package fake

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// maxBody is the largest request body.
const maxBody = 32 << 20

// Options of New.
type Options struct {
	// ReadyFile delays readiness: if set, /health is 503 until the file exists. Empty:
	// ready at once.
	ReadyFile string
	// Load is how long /health is 503 after New.
	Load time.Duration
	// Kill is the effect of die=N; nil: SIGKILL to this process.
	Kill func()
}

// Stats are the engine's counters. Times are nanoseconds since the epoch, 0 if the event
// has not happened. The first POST counts as the platform's warm-up.
type Stats struct {
	Began        int64 `json:"began"`         // New was called
	WarmedAt     int64 `json:"warmed"`        // just before the answer to the warm-up was written
	FirstArrival int64 `json:"first_arrival"` // first byte of the first POST after the warm-up
	LastArrival  int64 `json:"last_arrival"`  // first byte of the newest POST
	Posts        int64 `json:"posts"`
	Running      int64 `json:"running"`
	Left         int64 `json:"left"` // clients that disconnected before the end of their answer
}

// Engine answers on any number of connections. Its methods may be called
// concurrently.
type Engine struct {
	o Options

	began, warmedAt, first, last atomic.Int64
	posts, running, left         atomic.Int64

	mu    sync.Mutex
	body  []byte                // the newest POST's, owned by mu
	conns map[net.Conn]struct{} // open ones, owned by mu
}

// New creates an engine; Serve starts it.
func New(o Options) *Engine {
	e := &Engine{o: o, conns: map[net.Conn]struct{}{}}
	e.began.Store(time.Now().UnixNano())
	if e.o.Kill == nil {
		e.o.Kill = func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	}
	return e
}

// Serve answers connections of ln until ctx ends, then closes them and returns when all
// have ended.
func (e *Engine) Serve(ctx context.Context, ln net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		ln.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		for c := range e.conns {
			c.Close()
		}
	})
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !e.enter(ctx, c) {
			c.Close()
			continue
		}
		wg.Go(func() {
			defer e.exit(c)
			e.serve(ctx, c)
		})
	}
}

func (e *Engine) enter(ctx context.Context, c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Checked under the lock: the closer either sees the connection in the map or has
	// already ended ctx.
	if ctx.Err() != nil {
		return false
	}
	e.conns[c] = struct{}{}
	return true
}

func (e *Engine) exit(c net.Conn) {
	c.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c)
}

// Stats returns a copy of the counters.
func (e *Engine) Stats() Stats {
	return Stats{
		Began: e.began.Load(), WarmedAt: e.warmedAt.Load(), FirstArrival: e.first.Load(), LastArrival: e.last.Load(),
		Posts: e.posts.Load(), Running: e.running.Load(), Left: e.left.Load(),
	}
}

func (e *Engine) serve(ctx context.Context, c net.Conn) {
	br := bufio.NewReaderSize(c, 16<<10)
	var body []byte
	for {
		if _, err := br.Peek(1); err != nil {
			return
		}
		arrived := time.Now()
		method, path, length, ok := readHead(br)
		if !ok {
			return
		}
		if length < 0 || length > maxBody {
			_, _ = io.WriteString(c, refused)
			return
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(br, body); err != nil {
			return
		}
		if method == "POST" {
			ok = e.post(ctx, c, br, path, body, arrived)
		} else {
			ok = e.get(c, path)
		}
		if !ok {
			return
		}
	}
}

// readHead reads a request's head. length is -1 without a Content-Length.
func readHead(br *bufio.Reader) (method, path string, length int, ok bool) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return
	}
	f := bytes.Fields(line)
	if len(f) != 3 {
		return
	}
	method, path = string(f[0]), string(f[1])
	for {
		line, err = br.ReadSlice('\n')
		if err != nil {
			return method, path, 0, false
		}
		if len(line) <= 2 {
			return method, path, length, true
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				length = -1
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			length = -1
		}
	}
}

func (e *Engine) get(c net.Conn, path string) bool {
	answer := []byte(missing)
	switch path {
	case "/health", "/v1/health", "/ping":
		answer = jsonAnswer([]byte("{}"))
		if e.isLoading() {
			answer = []byte(loading)
		}
	case "/v1/models":
		answer = jsonAnswer([]byte(`{"object":"list","data":[{"id":"fake","object":"model","created":1694268190,"owned_by":"fake","max_model_len":32768}]}`))
	case "/stats":
		b, err := json.Marshal(e.Stats())
		if err != nil {
			return false
		}
		answer = jsonAnswer(b)
	case "/last":
		e.mu.Lock()
		answer = jsonAnswer(e.body)
		e.mu.Unlock()
	}
	_, err := c.Write(answer)
	return err == nil
}

func (e *Engine) isLoading() bool {
	if e.o.ReadyFile != "" {
		if _, err := os.Stat(e.o.ReadyFile); err != nil {
			return true
		}
	}
	return time.Since(time.Unix(0, e.began.Load())) < e.o.Load
}

var (
	plainAnswer     = jsonAnswer(plainResponse)
	plainTextAnswer = jsonAnswer(plainText)
	plainToolAnswer = jsonAnswer(plainTool)
	quickStream     = atOnce(true, Script{Tokens: defaultChunk})
)

// atOnce returns a whole stream with each event as an HTTP chunk.
func atOnce(chat bool, a Script) [][]byte {
	es := events(chat, a)
	out := make([][]byte, len(es))
	for i, s := range es {
		out[i] = framed(s)
	}
	out[len(out)-1] = append(out[len(out)-1], "0\r\n\r\n"...)
	return out
}

func (e *Engine) post(ctx context.Context, c net.Conn, br *bufio.Reader, path string, body []byte, arrived time.Time) bool {
	warmup := e.posts.Add(1) == 1
	e.running.Add(1)
	defer e.running.Add(-1)
	if !warmup {
		e.first.CompareAndSwap(0, arrived.UnixNano())
		e.last.Store(arrived.UnixNano())
		e.mu.Lock()
		e.body = append(e.body[:0], body...)
		e.mu.Unlock()
	}
	chat := path != "/v1/completions"
	a := ParseScript(body)
	if warmup {
		e.warmedAt.Store(time.Now().UnixNano())
	}
	if !a.Stream {
		answer := plainAnswer
		switch {
		case a.Tools:
			answer = plainToolAnswer
		case !chat:
			answer = plainTextAnswer
		}
		if a.Delay > 0 && !e.pause(ctx, c, br, a.Delay) {
			return false
		}
		_, err := c.Write(answer)
		return err == nil
	}
	if _, err := io.WriteString(c, okSSE); err != nil {
		return false
	}
	chunks := quickStream
	if !chat || a.Tools || a.Usage || a.Tokens != defaultChunk {
		chunks = atOnce(chat, a)
	}
	for i, b := range chunks {
		if a.Die > 0 && i == a.Die {
			e.o.Kill()
			return false
		}
		if a.Stall > 0 && i == a.Stall {
			return e.pause(ctx, c, br, time.Hour)
		}
		if a.Delay > 0 && !e.pause(ctx, c, br, a.Delay) {
			return false
		}
		if _, err := c.Write(b); err != nil {
			e.left.Add(1)
			return false
		}
	}
	return true
}

// pause waits, and reports false if the client disconnected or ctx ended. It waits in a
// read to notice a disconnect at once. Pipelined bytes stay in the buffer; they end the
// read, and a timer covers the rest.
func (e *Engine) pause(ctx context.Context, c net.Conn, br *bufio.Reader, d time.Duration) bool {
	// Wait for the next tick, which all streams share: a batching engine sends a token
	// of every sequence after each step. Streams that drift apart would change the load
	// from round to round.
	now := time.Now()
	until := now.Add(d - time.Duration(now.UnixNano()%int64(d)))
	if err := c.SetReadDeadline(until); err != nil {
		return false
	}
	// With buffered bytes Peek returns at once.
	if _, err := br.Peek(1); err != nil {
		if ne, ok := err.(net.Error); !ok || !ne.Timeout() {
			e.left.Add(1)
			return false
		}
	}
	if rest := time.Until(until); rest > 0 {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return false
		}
	}
	return c.SetReadDeadline(time.Time{}) == nil
}
