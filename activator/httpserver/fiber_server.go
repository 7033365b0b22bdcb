package httpserver

import (
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/thaw-dev/thaw/activator/http1"
)

// NewFiberServer makes the server that serves; it starts nothing.
func NewFiberServer(o Options) Server {
	f := &fiberServer{server: newServer(o)}
	f.app = fiber.New(fiber.Config{
		DisableStartupMessage:     true,
		DisableDefaultDate:        true,
		DisableDefaultContentType: true,
		DisableHeaderNormalizing:  true,
		ReadBufferSize:            256,  // it reads our request line only
		WriteBufferSize:           4864, // a size class of Go's: a piece of 4 KiB with a head before it
		BodyLimit:                 1,
		StreamRequestBody:         false,
		// The default would repeat unparsable input, secrets included. The front lets
		// none through.
		ErrorHandler: func(c *fiber.Ctx, err error) error {
			c.Context().Response.Reset()
			c.Context().SetConnectionClose()
			return c.SendStatus(http.StatusInternalServerError)
		},
	})
	f.app.Use(f.handle)
	f.app.Handler() // builds the route stack
	f.app.Server().CloseOnShutdown = true
	return f
}

type fiberServer struct {
	*server
	app *fiber.App
}

func (f *fiberServer) Serve(ln net.Listener) error {
	if !f.open(ln) {
		ln.Close()
		return nil
	}
	for {
		c, err := f.accept(ln)
		if err != nil {
			return f.ended(ln, err)
		}
		// Not fiber's own accept loop: its workers outlive Shutdown and it
		// knows connections only while they are idle.
		go f.app.Server().ServeConn(c)
	}
}

func (f *fiberServer) handle(c *fiber.Ctx) error {
	ctx := c.Context()
	w := ctx.Conn().(*conn)
	res := w.call()
	length := -1
	if res.Length > 0 {
		length = int(res.Length)
	}
	var instead func(net.Conn) // of an answer by fasthttp; the connection ends with it
	switch {
	case res.Upgrade != nil && w.head.upgrade:
		instead = func(net.Conn) { w.upgrade(res.Upgrade) }
	case res.Stream == nil && res.Status == StatusClientLeft:
		instead = func(net.Conn) {}
	case res.Stream != nil && length < 0 && w.head.http10: // HTTP/1.0 has no chunks, and fasthttp would send them
		instead = func(net.Conn) { w.plainStream(res) }
	}
	if instead != nil {
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(instead)
		return nil
	}
	h := &ctx.Response.Header
	h.SetStatusCode(res.Status)
	// fasthttp has no setter for Date, and its own clock is a goroutine without end; but
	// it writes the reason phrase unchanged, so Date goes there.
	w.reason = append(append(w.reason[:0], http.StatusText(res.Status)...), "\r\nDate: "...)
	w.reason = append(w.reason, f.date.now(time.Now())...)
	h.SetStatusMessage(w.reason)
	for _, x := range res.Fields {
		if !isOwnField(x.Name) {
			h.Add(x.Name, cleanValue(x.Value))
		}
	}
	if res.Close {
		ctx.SetConnectionClose()
	}
	if res.Stream == nil {
		ctx.Response.SetBodyRaw(res.Body)
		return nil
	}
	ctx.SetBodyStream(&responseStream{conn: w, in: res.Stream, chunks: length < 0}, length)
	return nil
}

// plainStream writes head and body of an answer that ends with its connection.
func (c *conn) plainStream(res *Response) {
	s := responseStream{conn: c, in: res.Stream}
	defer s.Close()
	b := appendLastAnswer(nil, res, c.s.date.now(time.Now()))
	if c.req.Method == "HEAD" {
		c.out.write(b)
		return
	}
	buf := make([]byte, 4<<10)
	for {
		n, err := s.Read(buf)
		if b = append(b, buf[:n]...); len(b) > 0 && (n > 0 || err == io.EOF) {
			if _, werr := c.out.write(b); werr != nil {
				return
			}
			b = b[:0]
		}
		if err != nil {
			return
		}
	}
}

// cleanValue replaces control characters of a value by spaces.
func cleanValue(v string) string {
	if !http1.HasControl(v) {
		return v
	}
	b := []byte(v)
	for i := range b {
		if http1.HasControl(b[i : i+1]) {
			b[i] = ' '
		}
	}
	return string(b)
}
