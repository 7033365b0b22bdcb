package ember

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
)

// server is the HTTP server. engine is nil while loading.
type server struct {
	o        *Options
	metrics  *metrics
	created  int64
	engine   atomic.Pointer[engine]
	active   atomic.Int64 // running handlers
	adapters adapterSet
}

// engine is the loaded model with its loop.
type engine struct {
	*loadedModel
	loop *loop
}

// Run loads the model and serves it until ctx ends; running sequences may continue for
// ShutdownTimeout, the rest fails, and Run returns nil. It returns an error if the
// model cannot be loaded or the address is in use.
func Run(ctx context.Context, o Options) error {
	if err := o.defaults(); err != nil {
		return err
	}
	if len(o.Names) == 0 {
		o.Names = []string{modelName(o.Model)}
	}
	began := time.Now()
	ln, err := net.Listen("tcp", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
	if err != nil {
		return err
	}
	s := &server{o: &o, metrics: newMetrics(), created: began.Unix()}
	hs := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	if o.Listening != nil {
		o.Listening(ln.Addr().String())
	}
	n := openNotifier(o.NotifySocket)
	defer n.close()

	err = s.serveModel(ctx, n, began, served)
	hs.Close()
	if e := <-served; err == nil && !errors.Is(e, http.ErrServerClosed) {
		err = e
	}
	return err
}

// serveModel loads the model and runs the loop until ctx has ended and it is drained.
func (s *server) serveModel(ctx context.Context, n notifier, began time.Time, served chan error) error {
	n.loading(0)
	if !backoff.Sleep(ctx, s.o.BootDelay) {
		return nil
	}
	c, err := loadModel(ctx, s.o, n.loading)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while loading
		}
		return err
	}
	defer c.model.Close()
	if !backoff.Sleep(ctx, s.o.ReadyDelay) {
		return nil
	}
	l := &loop{c: c, maxSeqs: s.o.MaxSeqs, maxBatch: s.o.MaxBatch, maxQueued: s.o.MaxQueued,
		tokenDelay: s.o.TokenDelay, metrics: s.metrics, wake: newest.NewSignal()}
	// The loop outlives ctx by at most ShutdownTimeout.
	working, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	looped := make(chan struct{})
	go func() {
		defer close(looped)
		l.run(working)
	}()
	s.engine.Store(&engine{c, l})
	n.send("READY=1\nSTATUS=ready\n")
	s.o.Log.Info("ready", "model", s.o.Names[0], "architecture", c.model.Architecture, "layers", c.model.Layers,
		"hidden", c.model.Hidden, "max_model_len", c.maxLen, "took", time.Since(began).Round(100*time.Microsecond))

	err = nil
	select {
	case <-ctx.Done():
	case err = <-served: // the listener broke
		served <- err
		err = fmt.Errorf("listener: %w", err)
	}
	n.send("STOPPING=1\n")
	l.drain()
	if s.o.ShutdownTimeout > 0 && err == nil {
		select {
		case <-looped:
		case <-time.After(s.o.ShutdownTimeout):
		}
	}
	stopServing()
	<-looped
	s.waitForHandlers()
	return err
}

// handlerGrace bounds the wait for handlers that write their last pieces.
const handlerGrace = 2 * time.Second

// notifier sends sd_notify datagrams to the parent. A missing or full socket
// is not the engine's trouble: the listener can still be asked.
type notifier struct{ conn *net.UnixConn }

func openNotifier(path string) notifier {
	if path == "" {
		return notifier{}
	}
	// net takes a leading @ as Linux's abstract namespace.
	c, _ := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	return notifier{c}
}

func (n notifier) send(s string) {
	if n.conn != nil {
		n.conn.Write([]byte(s)) // see the type
	}
}

func (n notifier) loading(percent int) {
	n.send("STATUS=loading percent=" + strconv.Itoa(percent) + "\n")
}

func (n notifier) close() {
	if n.conn != nil {
		n.conn.Close()
	}
}
