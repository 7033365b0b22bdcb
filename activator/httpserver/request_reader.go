package httpserver

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// readRequest reads one head and its body. A refusal is the answer to
// send; an error means that the client is gone.
func (w *conn) readRequest() (refusal *openai.Error, err error) {
	if w.buf == nil {
		w.buf = make([]byte, min(firstBuffer, w.s.o.MaxHead))
		if t, ok := w.Conn.(interface{ Handshake() error }); ok { // TLS: no slower than a head
			w.readBy(w.opened.Add(w.headTimeout()))
			if err := t.Handshake(); err != nil {
				return nil, err
			}
		}
	}
	var first time.Time // when the first byte was there
	line, at, skipped := 0, 0, false
	w.headAt = 0
	for {
		for at < w.w {
			n := bytes.IndexByte(w.buf[at:w.w], '\n')
			if n < 0 {
				at = w.w
				break
			}
			at += n + 1
			if at-2 < line || w.buf[at-2] != '\r' {
				return openai.New(openai.InvalidRequest, "The request's head is not well formed: a line does not end with CR LF."), nil
			}
			if at-2 > line {
				line = at
				continue
			}
			if line == 0 && !skipped { // old clients send one behind a body
				skipped, line, w.headAt = true, at, at
				continue
			}
			if at-w.headAt > w.s.o.MaxHead { // the buffer has grown beyond that for an earlier body
				return openai.New(openai.HeadTooLarge, ""), nil
			}
			if e := w.readHead(at); e != nil {
				return e, nil
			}
			w.used = true
			if refusal = w.checkHead(); refusal == nil {
				refusal, err = w.readBody()
			}
			return refusal.For(w.req.Path), err
		}
		if w.w >= w.s.o.MaxHead {
			return openai.New(openai.HeadTooLarge, ""), nil
		}
		if w.w == len(w.buf) {
			w.buf = append(w.buf, make([]byte, min(len(w.buf), w.s.o.MaxHead-len(w.buf)))...)
		}
		now := time.Now()
		if w.w > 0 {
			if first.IsZero() {
				first = now
				w.setPhase(reading)
			}
			w.readBy(first.Add(w.headTimeout()))
		} else if !w.used {
			w.readBy(w.opened.Add(w.headTimeout()))
		} else if left := w.readUntil.Sub(now); left < w.s.o.IdleTimeout || left > 2*w.s.o.IdleTimeout {
			w.readBy(now.Add(w.s.o.IdleTimeout + w.s.o.IdleTimeout/4)) // rarely, not per request
		}
		n, err := w.Conn.Read(w.buf[w.w:])
		w.w += n
		if err != nil && n == 0 {
			switch late := errors.Is(err, os.ErrDeadlineExceeded); {
			case late && w.slot.place == beyond:
				return addressFull(), nil
			case late && w.w > w.headAt:
				return openai.New(openai.RequestTimeout, ""), nil
			}
			return nil, err
		}
	}
}

// checkHead refuses what is not served on this connection.
func (w *conn) checkHead() *openai.Error {
	h, q := &w.head, &w.req
	if h.upgrade && !(h.webSocket && q.Method == "GET" && w.s.o.Upgrades != nil && w.s.o.Upgrades(q.Path)) {
		return openai.New(openai.InvalidRequest, "Upgrades are not served on this connection.")
	}
	if w.slot.place == beyond && (!isHealthPath(q.Path) || h.chunked || h.length > 0) {
		return addressFull()
	}
	return nil
}

// headTimeout bounds a head, and the time until the first byte of a connection.
func (w *conn) headTimeout() time.Duration {
	if w.slot.place == beyond {
		return min(beyondTimeout, w.s.o.HeadTimeout)
	}
	return w.s.o.HeadTimeout
}

// readHead reads the head that ends at an offset; the request is set where it is whole.
func (w *conn) readHead(end int) (e *openai.Error) {
	w.headEnd, w.r = end, end
	if w.head, w.fields, e = parseHead(w.buf[w.headAt:end], w.fields); w.head.whole {
		w.setRequest()
	}
	return e
}

// setRequest sets what the head says of the request.
func (w *conn) setRequest() {
	h, q, b := &w.head, &w.req, w.buf[w.headAt:w.headEnd]
	setMethod(&q.Method, b[h.method[0]:h.method[1]])
	path, query, _ := bytes.Cut(b[h.target[0]:h.target[1]], []byte{'?'})
	setString(&q.Path, path)
	setString(&q.Query, query)
	setString(&q.Host, b[h.host[0]:h.host[1]])
}

// authorize asks whether the body may be read, and for which account; if not, w.res is
// the answer.
func (w *conn) authorize() (account string, ok bool) {
	if w.s.o.Authorize == nil {
		ok = true
	} else {
		w.res = Response{Fields: w.res.Fields[:0]}
		callHandler(func(q *Request, res *Response) { account, ok = w.s.o.Authorize(q, res) }, &w.req, &w.res, w.s.o.Logger)
	}
	if account == "" {
		if w.address == "" {
			w.address = addressOf(w.RemoteAddr().String())
		}
		account = w.address
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

func (w *conn) readBy(t time.Time) {
	if !t.Equal(w.readUntil) {
		w.readUntil = t
		w.Conn.SetReadDeadline(t)
	}
}

// readBody reads the body behind the head, whose bytes so far are buf[r:w].
func (w *conn) readBody() (refusal *openai.Error, err error) {
	h, o := &w.head, &w.s.o
	have := int64(w.w - w.r)
	receiver, limit := o.receiverOf(&w.req)
	if receiver == nil {
		limit = o.MaxBody
	}
	if receiver == nil && !h.chunked && have >= h.length && h.length <= o.MaxBody {
		n := int(max(h.length, 0))
		w.req.Body = w.buf[w.r : w.r+n : w.r+n]
		w.r += n
		return nil, nil
	}
	w.setPhase(reading)
	account, ok := w.authorize()
	if !ok {
		w.rejected = true
		return nil, nil
	}
	if !w.slot.SetIdle(false) {
		return nil, errConnClosed
	}
	if account != w.account { // the buffer of an earlier body counts for another
		w.charge(0)
		w.large, w.account = nil, account
	}
	if h.length > limit {
		return tooLarge(limit), nil
	}
	if h.expect && !h.http10 {
		if _, err := w.write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return nil, err
		}
	}
	in := connBody{w: w, pace: pacedReader{o: o, in: w.Conn, conn: frontDeadline{w}, from: time.Now()}, left: max(h.length, 0), max: limit}
	if h.chunked && len(w.buf)-w.headEnd < 1<<10 {
		w.buf = append(w.buf, make([]byte, firstBuffer)...)
	}
	switch {
	case receiver != nil:
		return receiveBody(receiver, &w.req, &in, limit, o.Logger)
	case h.chunked:
		w.large, err = readBody(&in, w.large[:0], -1, o.MaxBody, w)
		w.req.Body = w.large
	case w.r+int(h.length) <= len(w.buf): // it fits behind the head
		end := w.r + int(h.length)
		for w.w < end && err == nil {
			var n int
			n, err = in.receive(w.buf[w.w:end])
			w.w += n
		}
		w.req.Body, w.r = w.buf[w.r:end:end], end
	default:
		w.large, err = readBody(&in, w.large[:0], int(h.length), o.MaxBody, w)
		w.req.Body = w.large
	}
	return bodyRefusal(err, limit)
}

// charge is that of a bodyCounter.
func (w *conn) charge(n int) error {
	more := int64(n) - w.charged
	if more == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errConnClosed
	}
	if err := w.s.o.Bodies.Add(w.account, more); err != nil {
		return err
	}
	w.charged = int64(n)
	return nil
}
