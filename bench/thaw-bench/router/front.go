package router

import (
	"context"
	"net"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/testkit/fake"
)

// Front serves the HTTP server of the gateway alone, which answers each request with the
// engine's plain answer, until ctx ends.
func Front(ctx context.Context, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := httpserver.NewFiberServer(httpserver.Options{Handler: func(_ *httpserver.Request, res *httpserver.Response) {
		res.Status, res.Body = 200, fake.PlainBody()
		res.Set("content-type", "application/json")
	}})
	stop := context.AfterFunc(ctx, func() { s.Shutdown(ctx) })
	defer stop()
	return s.Serve(ln)
}

// startFront starts a process that runs Front.
func (o *Options) startFront(ctx context.Context) (p *process.Process, addr string, err error) {
	if addr, err = process.FreeAddr(); err != nil {
		return nil, "", err
	}
	if p, err = process.Begin("front", o.Dir, nil, o.Engine[0], "front", "--addr", addr); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err = p.WaitTCP(ctx, addr); err != nil {
		p.End(time.Second)
	}
	return p, addr, err
}
