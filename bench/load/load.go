package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Request is a request as an official client sends it, with a system prompt of about Size
// bytes.
type Request struct {
	Model  string
	Key    string // bearer key; empty sends a key that is not checked
	Stream bool
	Prompt string // the user's message
	Size   int
	Extra  string // more fields of the body, such as `,"user":"x"`
}

// Bytes returns the encoded request.
func (r Request) Bytes() []byte {
	key := r.Key
	if key == "" {
		key = "sk-0123456789abcdef0123456789abcdef"
	}
	const line = "You are a helpful assistant, please answer. "
	pad := strings.Repeat(line, r.Size/len(line)+1)[:r.Size]
	body := fmt.Sprintf(`{"model":"%s","messages":[{"role":"system","content":"%s"},{"role":"user","content":"%s"}],"temperature":0.7,"max_tokens":256,"stream":%v%s}`,
		r.Model, pad, r.Prompt, r.Stream, r.Extra)
	return []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\nContent-Type: application/json\r\n" +
		"Authorization: Bearer " + key +
		"\r\nUser-Agent: OpenAI/Python 3.52.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 3.52.0\r\n" +
		"X-Stainless-Os: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Async: false\r\n" +
		"Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// Answer is a complete answer.
type Answer struct {
	Status    int
	Body      []byte    // valid until the next answer on the same Conn
	RequestID string    // x-request-id
	ColdStart string    // thaw-cold-start
	First     time.Time // time of the first event with text; of a plain answer that of its body
	End       time.Time
	closing   bool
}

// Conn is a connection, used by one goroutine.
type Conn struct {
	addr string
	c    net.Conn
	br   *bufio.Reader
	body bytes.Buffer
	used bool
}

// Dial opens a connection.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	k := &Conn{addr: addr}
	return k, k.dial(ctx)
}

func (c *Conn) dial(ctx context.Context) error {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return err
	}
	c.c, c.used = nc, false
	if c.br == nil {
		c.br = bufio.NewReaderSize(nc, 32<<10)
	} else {
		c.br.Reset(nc)
	}
	return nil
}

// Close closes the connection, also during a request.
func (c *Conn) Close() { c.c.Close() }

// Send writes a request without reading its answer.
func (c *Conn) Send(req []byte) error {
	_, err := c.c.Write(req)
	return err
}

// Do sends a request and reads the answer. An idle connection that the other side closed
// is reopened once, as every client does. The end of ctx closes it.
func (c *Conn) Do(ctx context.Context, req []byte) (Answer, error) {
	stop := context.AfterFunc(ctx, func() { c.c.Close() })
	defer stop()
	err := c.Send(req)
	if err == nil {
		_, err = c.br.Peek(1)
	}
	if err != nil && c.used && ctx.Err() == nil {
		stop()
		c.c.Close()
		if err = c.dial(ctx); err == nil {
			return c.Do(ctx, req)
		}
	}
	if err != nil {
		return Answer{}, err
	}
	a, err := c.Read()
	if err == nil && a.closing {
		c.c.Close()
		err = c.dial(ctx)
	}
	c.used = !a.closing
	return a, err
}

// Read reads one complete answer.
func (c *Conn) Read() (Answer, error) {
	var a Answer
	c.body.Reset()
	line, err := c.br.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return a, fmt.Errorf("no HTTP: %q", line)
	}
	if a.Status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, fmt.Errorf("no status: %q", line)
	}
	length, chunked := -1, false
	for {
		line, err = c.br.ReadSlice('\n')
		if err != nil {
			return a, unexpected(err)
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return a, fmt.Errorf("content-length %q", value)
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		case bytes.EqualFold(name, []byte("connection")):
			a.closing = bytes.EqualFold(value, []byte("close"))
		case bytes.EqualFold(name, []byte("x-request-id")):
			a.RequestID = string(value)
		case bytes.EqualFold(name, []byte("thaw-cold-start")):
			a.ColdStart = string(value)
		}
	}
	switch {
	case chunked:
		err = c.chunks(&a)
	case length >= 0:
		_, err = io.CopyN(&c.body, c.br, int64(length))
		a.First = time.Now()
	default:
		return a, errors.New("an answer of no declared length")
	}
	a.End, a.Body = time.Now(), c.body.Bytes()
	return a, unexpected(err)
}

func (c *Conn) chunks(a *Answer) error {
	for {
		line, err := c.br.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
		if err != nil {
			return fmt.Errorf("chunk size %q", line)
		}
		had := c.body.Len()
		if _, err := io.CopyN(&c.body, c.br, int64(n)); err != nil {
			return err
		}
		if a.First.IsZero() && hasText(c.body.Bytes()[had:]) {
			a.First = time.Now()
		}
		if _, err := c.br.Discard(2); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

// textValue begins a text that is not empty: its key may be followed by blanks, as any JSON.
var textValue = regexp.MustCompile(`"(?:content|text)"[ \t]*:[ \t]*"[^"]`)

// hasText reports whether events contain text: a comment, a role alone or the no-op
// chunk of a held stream do not.
func hasText(events []byte) bool { return textValue.Match(events) }

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Exactly returns a check for status 200 and this body, ignoring comments and no-op
// lines of a held stream.
func Exactly(want []byte) func(Answer) error {
	return func(a Answer) error {
		if a.Status != 200 {
			return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
		}
		if bytes.Equal(a.Body, want) {
			return nil
		}
		if got := withoutComments(a.Body); !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes, want %d; they differ at %d", len(got), len(want), differ(got, want))
		}
		return nil
	}
}

func withoutComments(b []byte) []byte {
	var out []byte
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line = b[:i+1]
		}
		if line[0] != ':' {
			out = append(out, line...)
		}
		b = b[len(line):]
	}
	return out
}

func differ(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Outcome of a run.
type Outcome struct {
	Requests int
	Bad      int
	FirstBad error // the first wrong answer
	Took     time.Duration
}

// Closed sends n requests over conns connections, the next when the previous is
// answered, and checks every answer. It returns early only when ctx ends.
func Closed(ctx context.Context, addr string, req []byte, conns, n int, check func(Answer) error) (Outcome, error) {
	o := Outcome{Requests: n}
	var left, bad atomic.Int64
	left.Store(int64(n))
	var once sync.Once
	fail := func(err error) {
		bad.Add(1)
		once.Do(func() { o.FirstBad = err })
	}
	began := time.Now()
	var wg sync.WaitGroup
	for range min(conns, n) {
		wg.Go(func() {
			k, err := Dial(ctx, addr)
			if err != nil {
				fail(err)
				return
			}
			defer func() { k.Close() }()
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				a, err := k.Do(ctx, req)
				if err == nil {
					if err = check(a); err != nil {
						fail(err)
					}
					continue
				}
				fail(err)
				k.Close()
				if err := k.dial(ctx); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	o.Took, o.Bad = time.Since(began), int(bad.Load())
	return o, ctx.Err()
}
