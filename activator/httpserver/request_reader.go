package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// readRequest reads one head and its body. A refusal is the answer to
// send; an error means that the client is gone.
func (c *conn) readRequest() (refusal *openai.Error, err error) {
	if c.buf == nil {
		c.buf = make([]byte, min(firstBuffer, c.s.o.MaxHead))
		if t, ok := c.Conn.(interface{ Handshake() error }); ok { // TLS: no slower than a head
			c.readBy(c.opened.Add(c.headTimeout()))
			if err := t.Handshake(); err != nil {
				return nil, err
			}
		}
	}
	var first time.Time // when the first byte was there
	line, at, skipped := 0, 0, false
	c.headAt = 0
	for {
		for at < c.w {
			n := bytes.IndexByte(c.buf[at:c.w], '\n')
			if n < 0 {
				at = c.w
				break
			}
			at += n + 1
			if at-2 < line || c.buf[at-2] != '\r' {
				return openai.New(openai.InvalidRequest, "The request's head is not well formed: a line does not end with CR LF."), nil
			}
			if at-2 > line {
				line = at
				continue
			}
			if line == 0 && !skipped { // old clients send one behind a body
				skipped, line, c.headAt = true, at, at
				continue
			}
			if at-c.headAt > c.s.o.MaxHead { // the buffer has grown beyond that for an earlier body
				return c.refuseLargeHead(line), nil
			}
			if e := c.readHead(at); e != nil {
				return e, nil
			}
			c.used = true
			if refusal = c.checkHead(); refusal == nil {
				refusal, err = c.readBody()
			}
			return refusal.For(c.req.Path), err
		}
		if c.w > c.headAt && c.buf[c.headAt] != '\r' && !isToken(c.buf[c.headAt:c.headAt+1]) { // most often TLS, which waits for an answer
			return malformed("it begins with no method. This port takes http, not https"), nil
		}
		if c.w >= c.s.o.MaxHead {
			return c.refuseLargeHead(line), nil
		}
		if c.w == len(c.buf) {
			c.buf = append(c.buf, make([]byte, min(len(c.buf), c.s.o.MaxHead-len(c.buf)))...)
		}
		now := time.Now()
		if c.w > 0 {
			if first.IsZero() {
				first = now
				c.setPhase(reading)
			}
			c.readBy(first.Add(c.headTimeout()))
		} else if !c.used {
			c.readBy(c.opened.Add(c.headTimeout()))
		} else if left := c.readUntil.Sub(now); left < c.s.o.IdleTimeout || left > 2*c.s.o.IdleTimeout {
			c.readBy(now.Add(c.s.o.IdleTimeout + c.s.o.IdleTimeout/4)) // rarely, not per request
		}
		n, err := c.Conn.Read(c.buf[c.w:])
		c.w += n
		if err != nil && n == 0 {
			switch late := errors.Is(err, os.ErrDeadlineExceeded); {
			case late && c.slot.place == beyond:
				return addressFull(), nil
			case late && c.w > c.headAt:
				return openai.New(openai.RequestTimeout, ""), nil
			}
			return nil, err
		}
	}
}

func headTooLarge(limit int) *openai.Error {
	return openai.New(openai.HeadTooLarge,
		fmt.Sprintf("The request's head is larger than %d bytes: send fewer and shorter fields; a browser's cookies are among them.", limit))
}

// checkHead refuses what is not served on this connection.
func (c *conn) checkHead() *openai.Error {
	h, q := &c.head, &c.req
	if h.upgrade && !(h.webSocket && q.Method == "GET" && c.s.o.Upgrades != nil && c.s.o.Upgrades(q.Path)) {
		return openai.New(openai.InvalidRequest,
			"Upgrades are not served on this connection: send the request with POST, and \"stream\": true for events.")
	}
	if c.slot.place == beyond && (!isHealthPath(q.Path) || h.chunked || h.length > 0) {
		return addressFull()
	}
	return nil
}

// headTimeout bounds a head, and the time until the first byte of a connection.
func (c *conn) headTimeout() time.Duration {
	if c.slot.place == beyond {
		return min(beyondTimeout, c.s.o.HeadTimeout)
	}
	return c.s.o.HeadTimeout
}

// readHead reads the head that ends at an offset; the request is set where it is whole.
func (c *conn) readHead(end int) (e *openai.Error) {
	c.headEnd, c.r = end, end
	c.head, c.fields, e = parseHead(c.buf[c.headAt:end], c.fields)
	c.lengths = 0
	for _, f := range c.fields {
		c.lengths |= lengthBit(int(f.colon - f.name))
	}
	if c.head.whole {
		c.setRequest()
	}
	return e
}

// refuseLargeHead reads the fields of a head that is too large, as far as its lines have come,
// for the fields of the answer that depend on them.
func (c *conn) refuseLargeHead(end int) *openai.Error {
	c.buf = append(c.buf[:end], "\r\n"...)
	c.readHead(len(c.buf))
	return headTooLarge(c.s.o.MaxHead)
}

// setRequest sets what the head says of the request.
func (c *conn) setRequest() {
	h, q, b := &c.head, &c.req, c.buf[c.headAt:c.headEnd]
	setMethod(&q.Method, b[h.method[0]:h.method[1]])
	path, query, _ := bytes.Cut(b[h.target[0]:h.target[1]], []byte{'?'})
	setString(&q.Path, path)
	setString(&q.Query, query)
	setString(&q.Host, b[h.host[0]:h.host[1]])
}

// authorize asks whether the body may be read, and for which account; if not, c.res is
// the answer.
func (c *conn) authorize() (account string, ok bool) {
	if c.s.o.Authorize == nil {
		ok = true
	} else {
		c.res = Response{Fields: c.res.Fields[:0]}
		callHandler(func(q *Request, res *Response) { account, ok = c.s.o.Authorize(q, res) }, &c.req, &c.res, c.s.o.Logger)
	}
	if account == "" {
		if c.address == "" {
			c.address = addressOf(c.RemoteAddr().String())
		}
		account = c.address
	}
	return account, ok
}

// addressOf is the host of HOST:PORT.
func addressOf(remote string) string {
	if i := strings.LastIndexByte(remote, ':'); i >= 0 {
		return remote[:i]
	}
	return remote
}

func (c *conn) readBy(t time.Time) {
	if !t.Equal(c.readUntil) {
		c.readUntil = t
		c.Conn.SetReadDeadline(t)
	}
}

// readBody reads the body behind the head, whose bytes so far are buf[r:w].
func (c *conn) readBody() (refusal *openai.Error, err error) {
	h, o := &c.head, &c.s.o
	have := int64(c.w - c.r)
	receiver, limit := o.receiverOf(&c.req)
	if receiver == nil {
		limit = o.MaxBody
	}
	if receiver == nil && !h.chunked && have >= h.length && h.length <= o.MaxBody {
		n := int(max(h.length, 0))
		c.req.Body = c.buf[c.r : c.r+n : c.r+n]
		c.r += n
		return nil, nil
	}
	c.setPhase(reading)
	account, ok := c.authorize()
	if !ok {
		c.rejected = true
		return nil, nil
	}
	if !c.slot.SetIdle(false) {
		return nil, errConnClosed
	}
	if account != c.account { // the buffers of an earlier body count for another
		c.large = nil
		c.charge(0)
		c.account = account
		if err := c.setCharged(0); err != nil {
			return bodyRefusal(err, limit)
		}
	}
	if h.length > limit {
		return tooLarge(limit), nil
	}
	if h.expect && !h.http10 {
		if _, err := c.write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return nil, err
		}
	}
	in := connBody{conn: c, pace: pacedReader{o: o, in: c.Conn, conn: frontDeadline{c}, from: time.Now()}, left: max(h.length, 0), max: limit}
	if h.chunked && len(c.buf)-c.headEnd < 1<<10 {
		c.buf = append(c.buf, make([]byte, firstBuffer)...)
	}
	switch {
	case receiver != nil:
		return receiveBody(receiver, &c.req, &in, limit, o.Logger)
	case h.chunked:
		c.large, err = readBody(&in, c.large[:0], -1, o.MaxBody, c)
		c.req.Body = c.large
	case h.length <= keepBody && c.r+int(h.length) <= max(len(c.buf), keepBody):
		err = c.readBehindHead(&in, c.r+int(h.length))
	default:
		c.large, err = readBody(&in, c.large[:0], int(h.length), o.MaxBody, c)
		c.req.Body = c.large
	}
	return bodyRefusal(err, limit)
}

// readBehindHead reads the body behind its head, up to end. A buffer that has grown for it
// stays: the next request of this size comes with one read, and so without Authorize.
func (c *conn) readBehindHead(in *connBody, end int) error {
	if end > len(c.buf) {
		to := keepBody
		for to/2 >= end {
			to /= 2
		}
		grown := c.grown
		c.grown, c.large = int64(to-firstBuffer), nil
		if err := c.setCharged(0); err != nil {
			c.grown = grown
			return err
		}
		c.buf = append(make([]byte, 0, to), c.buf...)[:to]
	}
	for c.w < end {
		n, err := in.receive(c.buf[c.w:end])
		if c.w += n; err != nil {
			return err
		}
	}
	c.req.Body, c.r = c.buf[c.r:end:end], end
	return nil
}

// setCharged is that of a bodyCounter, for a body beside the connection's buffer.
func (c *conn) setCharged(n int) error { return c.charge(int64(n) + c.grown) }

// charge counts n bytes for the account of the connection in place of those before.
func (c *conn) charge(n int64) error {
	more := n - c.charged
	if more == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errConnClosed
	}
	if err := c.s.o.Bodies.Add(c.account, more); err != nil {
		return err
	}
	c.charged = n
	return nil
}
