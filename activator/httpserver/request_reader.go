package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// readRequest reads one head and its body. A refusal is the answer to
// send; an error means that the client is gone.
func (c *conn) readRequest() (refusal *openai.Error, err error) {
	if c.in.buf == nil {
		c.in.buf = make([]byte, min(firstBuffer, c.s.o.MaxHead))
		if t, ok := c.Conn.(interface{ Handshake() error }); ok { // TLS: no slower than a head
			c.in.SetReadDeadline(c.opened.Add(c.headTimeout))
			if err := t.Handshake(); err != nil {
				return nil, err
			}
		}
	}
	var first time.Time // when the first byte was there
	line, at := 0, 0
	for {
		for at < c.in.w {
			n := bytes.IndexByte(c.in.buf[at:c.in.w], '\n')
			if n < 0 {
				at = c.in.w
				break
			}
			at += n + 1
			if at-2 < line || c.in.buf[at-2] != '\r' {
				return malformed("a line does not end with CR LF"), nil
			}
			if at-2 > line {
				line = at
				continue
			}
			if line == 0 { // old clients send one behind a body
				line, c.in.r = at, at
				continue
			}
			if at-c.in.r > c.s.o.MaxHead { // the buffer has grown beyond that for an earlier body
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
		if c.in.w > c.in.r && c.in.buf[c.in.r] != '\r' && !isToken(c.in.buf[c.in.r:c.in.r+1]) { // most often TLS, which waits for an answer
			return malformed("it begins with no method. This port takes http, not https"), nil
		}
		if c.in.w >= c.s.o.MaxHead {
			return c.refuseLargeHead(line), nil
		}
		if c.in.w == len(c.in.buf) {
			c.in.buf = append(c.in.buf, make([]byte, min(len(c.in.buf), c.s.o.MaxHead-len(c.in.buf)))...)
		}
		now := time.Now()
		if c.in.w > 0 {
			if first.IsZero() {
				first = now
				c.state.setPhase(reading)
			}
			c.in.SetReadDeadline(first.Add(c.headTimeout))
		} else if !c.used {
			c.in.SetReadDeadline(c.opened.Add(c.headTimeout))
		} else if left := c.in.until.Sub(now); left < c.s.o.IdleTimeout || left > 2*c.s.o.IdleTimeout {
			c.in.SetReadDeadline(now.Add(c.s.o.IdleTimeout + c.s.o.IdleTimeout/4)) // rarely, not per request
		}
		n, err := c.Conn.Read(c.in.buf[c.in.w:])
		c.in.w += n
		if err != nil && n == 0 {
			switch late := errors.Is(err, os.ErrDeadlineExceeded); {
			case late && c.slot.place == beyond:
				return addressFull(), nil
			case late && c.in.w > c.in.r:
				return openai.New(openai.RequestTimeout, ""), nil
			}
			return nil, err
		}
	}
}

// checkHead refuses what is not served on this connection.
func (c *conn) checkHead() *openai.Error {
	h, q := &c.head, &c.req
	sockets := c.s.o.Upgrades != nil && c.s.o.Upgrades(q.Path)
	if h.upgrade && !(h.webSocket && q.Method == "GET" && sockets) {
		text := "Upgrades are not served at this path: send the request with POST, and \"stream\": true for events."
		switch {
		case sockets:
			text = "A WebSocket begins with GET over HTTP/1.1 without a body, with Connection: Upgrade and Upgrade: websocket, " +
				"which proxies have to pass on."
		case h.webSocket && c.s.o.Upgrades != nil:
			text += " WebSockets are at /ws/CLIENT_ID alone."
		}
		return openai.New(openai.InvalidRequest, text)
	}
	if c.slot.place == beyond && (!isHealthPath(q.Path) || h.chunked || h.length > 0) {
		return addressFull()
	}
	return nil
}

// readHead reads the head that ends at an offset; the request is set where it is whole.
func (c *conn) readHead(end int) (e *openai.Error) {
	if c.head, e = parseHead(c.in.buf[c.in.r:end], c.head.fields); c.head.whole {
		c.head.setRequest(&c.req)
	}
	c.in.r = end
	return e
}

// refuseLargeHead reads the fields of a head that is too large, as far as its lines have come,
// for the fields of the answer that depend on them.
func (c *conn) refuseLargeHead(end int) *openai.Error {
	c.in.buf = append(c.in.buf[:end], "\r\n"...)
	c.readHead(len(c.in.buf))
	return openai.New(openai.HeadTooLarge, fmt.Sprintf(
		"The request's head is larger than %d bytes: send fewer and shorter fields; a browser's cookies are among them.", c.s.o.MaxHead))
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

// readBody reads the body behind the head, whose bytes so far are buf[r:w].
func (c *conn) readBody() (refusal *openai.Error, err error) {
	h, o := &c.head, &c.s.o
	receiver, limit := o.receiverOf(&c.req)
	if receiver == nil && !h.chunked && int64(c.in.w-c.in.r) >= h.length && h.length <= limit {
		n := int(max(h.length, 0))
		c.req.Body = c.in.buf[c.in.r : c.in.r+n : c.in.r+n]
		c.in.r += n
		return nil, nil
	}
	c.state.setPhase(reading)
	account, ok := c.authorize()
	if !ok {
		c.rejected = true
		return nil, nil
	}
	if !c.slot.SetIdle(false) {
		return nil, net.ErrClosed
	}
	if err := c.body.setAccount(account); err != nil {
		return bodyRefusal(err, limit)
	}
	if h.length > limit {
		return tooLarge(limit), nil
	}
	if h.expect && !h.http10 {
		if _, err := c.out.write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return nil, err
		}
	}
	in := connBody{in: &c.in, pace: pacedReader{o: o, in: c.Conn, conn: &c.in, from: time.Now()}, start: c.in.r, chunked: h.chunked,
		left: max(h.length, 0), max: limit}
	if h.chunked && len(c.in.buf)-c.in.r < 1<<10 {
		c.in.buf = append(c.in.buf, make([]byte, firstBuffer)...)
	}
	switch {
	case receiver != nil:
		return receiveBody(receiver, &c.req, &in, limit, o.Logger)
	case !h.chunked && h.length <= keepBody && c.in.r+int(h.length) <= max(len(c.in.buf), keepBody):
		err = c.readBehindHead(&in, c.in.r+int(h.length))
	default:
		c.body.large, err = readBody(&in, c.body.large[:0], int(h.length), limit, &c.body)
		c.req.Body = c.body.large
	}
	return bodyRefusal(err, limit)
}

// readBehindHead reads the body behind its head, up to end. A buffer that has grown for it
// stays: the next request of this size comes with one read, and so without Authorize.
func (c *conn) readBehindHead(in *connBody, end int) error {
	if end > len(c.in.buf) {
		to := keepBody
		for to/2 >= end {
			to /= 2
		}
		c.body.large = nil
		if err := c.body.Set(int64(to - firstBuffer)); err != nil {
			return err
		}
		c.body.grown = int64(to - firstBuffer)
		c.in.buf = append(make([]byte, 0, to), c.in.buf...)[:to]
	}
	for c.in.w < end {
		n, err := in.receive(c.in.buf[c.in.w:end])
		if c.in.w += n; err != nil {
			return err
		}
	}
	c.req.Body, c.in.r = c.in.buf[c.in.r:end:end], end
	return nil
}
