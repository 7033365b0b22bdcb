package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/gateway"
)

// activation is the flags of an activator.
type activation struct {
	addr, private, metrics string
	controller, token, id  string
	certs                  string
	hold                   string
	shutdownDelay, drain   time.Duration
	maxBody                string
	log                    logging
}

func (c *command) activatorPart() *kit.Command {
	var a activation
	return partCommand("activator", "Serve requests in a cluster, and hold those whose model is cold",
		`  thaw-knative activator --controller thaw-controller.thaw-system:8090 --token-file /run/thaw/token
  thaw-knative activator --addr 127.0.0.1:8080 --private-addr 127.0.0.1:8081 --metrics-addr 127.0.0.1:9090 \
      --controller 127.0.0.1:8090 --token-file token --log-format text`,
		func(f *kit.FlagSet) {
			host, _ := os.Hostname()
			f.StringVar(&a.addr, "addr", ":8080", "where requests from outside come in")
			f.StringVar(&a.private, "private-addr", ":8081", "where requests from inside the cluster come in")
			f.StringVar(&a.metrics, "metrics-addr", ":9090", "where /metrics, /healthz and /readyz are")
			f.StringVar(&a.controller, "controller", "", "HOST:PORT of the controller; all addresses of HOST are tried")
			f.StringVar(&a.token, "token-file", "", "file with the token of the cluster's links")
			f.StringVar(&a.certs, "certs", "", "folder with ca.crt, tls.crt and tls.key by which the controller and this one know each other; read again when they change; empty dials plainly")
			f.StringVar(&a.id, "id", cmp.Or(c.getenv("POD_NAME"), host), "name of this activator, no other's [POD_NAME]")
			a.settings(f)
			f.DurationVar(&a.shutdownDelay, "shutdown-delay", 3*time.Second, "after SIGTERM, how long new requests are accepted while routes to this activator are withdrawn")
			f.DurationVar(&a.drain, "drain", 100*time.Second, "after SIGTERM, how long active requests may go on")
			a.log.flags(f)
		},
		func(ctx context.Context) error { return a.run(ctx, c) })
}

// settings registers the flags that install also has and passes on.
func (o *activation) settings(f *kit.FlagSet) {
	f.StringVar(&o.hold, "hold", string(activator.HoldSilent), "what a plain request gets while it waits: hold, pad or 503")
	f.StringVar(&o.maxBody, "max-body", "32Mi", "the longest body of an API request")
}

// most validates the settings and returns the longest body.
func (o *activation) most() (functions.Bytes, error) {
	if o.hold != string(activator.HoldSilent) && o.hold != string(activator.HoldPad) && o.hold != string(activator.Hold503) {
		return 0, kit.Usage("hold, pad or 503", "--hold %s", kit.Plain(o.hold))
	}
	most, err := functions.ParseBytes(o.maxBody)
	if err != nil || most <= 0 {
		return 0, kit.Usage("such as 32Mi", "--max-body %s", kit.Plain(o.maxBody))
	}
	return most, nil
}

// run serves requests until ctx ends. Shutdown follows the data: readiness fails, so
// that no new requests are routed here; held requests are answered; then streams end.
func (o *activation) run(ctx context.Context, c *command) error {
	token, err := o.check()
	if err != nil {
		return err
	}
	most, err := o.most()
	if err != nil {
		return err
	}
	reread := func() (string, error) { return readToken(o.token) }
	certificates, err := controlstream.Certified(o.certs)
	if err != nil {
		return &kit.Error{What: "--certs " + o.certs, Err: err, Hint: "ca.crt, tls.crt and tls.key of the Secret thaw-control-tls"}
	}
	logs, err := o.log.handler()
	if err != nil {
		return err
	}
	log := logs(c.Err)
	requests := httpserver.NewBatchWriter(c.Err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())

	keys := &keys{book: auth.NewReplicatedKeyStore(), limits: &ratelimit.Limits{}, log: log}
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	var gate *gateway.Gateway // made before the link runs
	platform := controlstream.NewActivator(controlstream.ActivatorOptions{
		Addr: o.controller, Token: token, ID: o.id, Version: cli.Version, Log: log,
		Keys: keys.set, RateLimits: keys.limits, TLS: certificates, Reread: reread,
		Table: func(t *controlstream.Table) { gate.SetTable(t) },
	})
	data := activator.New(activator.Options{
		Waker: platform, Keys: keys.book, Limits: keys.limits, Engines: engines, Hold: activator.HoldMode(o.hold),
		DemandChanged: platform.Stirred, FirstToken: platform.FirstToken,
		Metrics: registry, Log: logs(requests),
	})
	gate = gateway.New(gateway.Options{Activator: data, Leader: platform.Leader, MaxBody: int64(most), Metrics: registry, Log: log})
	platform.Attach(gate.DataPath())
	keys.limits.ShareLimits(platform.Claim)
	registry.MustRegister(connectedMetric(platform))

	public, private, metrics, err := o.listen(ctx)
	if err != nil {
		return err
	}
	defer public.Close()
	defer private.Close()
	defer metrics.Close()
	state := &readiness{platform: platform}
	side := &http.Server{Handler: sideHandler(registry, state.missing), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}

	// The parts run until life ends, which is after the requests have drained.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	var parts sync.WaitGroup
	part := func(f func(context.Context) error) {
		parts.Go(func() {
			if err := f(life); err != nil && !errors.Is(err, http.ErrServerClosed) {
				end(err)
			}
		})
	}
	part(requests.Run)
	part(httpserver.NewProcTuner().Run)
	part(platform.Run)
	part(func(context.Context) error { return side.Serve(metrics) })
	part(func(context.Context) error { return gate.Serve(public, private) })
	log.Info("serving", "addr", public.Addr().String(), "private", private.Addr().String(), "metrics", metrics.Addr().String(), "id", o.id)
	o.drainRequests(ctx, life, state, gate, log)
	cause := context.Cause(life)
	side.Close()
	end(nil)
	parts.Wait()
	if cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// drainRequests waits until ctx or life ends, and shuts the gate down: first readiness
// fails for shutdownDelay, then active requests have the rest of drain.
func (o *activation) drainRequests(ctx, life context.Context, state *readiness, gate *gateway.Gateway, log *slog.Logger) {
	select {
	case <-ctx.Done():
		log.Info("draining", "for", o.drain.String())
	case <-life.Done():
	}
	state.draining.Store(true)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.drain)
	defer cancel()
	select {
	case <-time.After(min(o.shutdownDelay, o.drain)):
	case <-life.Done():
	}
	if err := gate.Shutdown(drain); err != nil {
		log.Warn("requests were cut at the drain deadline", "error", err)
	}
}

// check validates the flags and reads the token.
func (o *activation) check() (token string, err error) {
	switch {
	case o.controller == "":
		return "", kit.Usage("such as thaw-controller.thaw-system:8090", "--controller is missing")
	case o.id == "":
		return "", kit.Usage("the name of the pod", "--id is missing")
	case o.shutdownDelay < 0 || o.drain <= 0:
		return "", kit.Usage("such as 3s and 100s", "--shutdown-delay and --drain cannot be less than nothing")
	}
	if _, _, err := net.SplitHostPort(o.controller); err != nil {
		return "", kit.Usage("such as thaw-controller.thaw-system:8090", "--controller %s is no HOST:PORT", kit.Plain(o.controller))
	}
	return readToken(o.token)
}

// listen opens the three listeners.
func (o *activation) listen(ctx context.Context) (public, private, metrics net.Listener, err error) {
	var open []net.Listener
	for _, x := range [][2]string{{"--addr", o.addr}, {"--private-addr", o.private}, {"--metrics-addr", o.metrics}} {
		l, err := listenTCP(ctx, x[0], x[1])
		if err != nil {
			for _, l := range open {
				l.Close()
			}
			return nil, nil, nil, err
		}
		open = append(open, l)
	}
	return open[0], open[1], open[2], nil
}

func listenTCP(ctx context.Context, flag, addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, &kit.Error{What: "cannot listen on " + addr, Err: err, Hint: "another address: " + flag}
	}
	return l, nil
}

// sideHandler is what stands beside the requests: metrics, and whether there are any to
// be taken.
func sideHandler(registry *prometheus.Registry, missing func() []string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		why := missing()
		if len(why) == 0 {
			w.Write([]byte("ok\n"))
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, line := range why {
			w.Write([]byte(line + "\n"))
		}
	})
	return mux
}

// readiness lists the reasons not to be ready. An activator that loses its controller
// stays ready and serves with what it knows.
type readiness struct {
	platform *controlstream.Activator
	draining atomic.Bool
}

func (r *readiness) missing() []string {
	if r.draining.Load() {
		return []string{"shutting down"}
	}
	select {
	case <-r.platform.Heard():
		return nil
	default:
		return []string{"the controller has not sent the models yet"}
	}
}

// buildInfo is which build this is.
func buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "thaw_build_info", Help: "1; the labels tell the build.",
		ConstLabels: prometheus.Labels{"version": cli.Version, "go": runtime.Version()},
	}, func() float64 { return 1 })
}

// connectedMetric is whether the controller is there.
func connectedMetric(platform *controlstream.Activator) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "thaw_controller_connected", Help: "1 while this activator is connected to a controller, else 0.",
	}, func() float64 {
		if platform.Connected() {
			return 1
		}
		return 0
	})
}

// keys stores the keys of the cluster, which the controller sends.
type keys struct {
	book   *auth.KeyStore
	limits *ratelimit.Limits
	log    *slog.Logger
}

func (k *keys) set(all controlstream.Keys) {
	fed := make([]auth.ReplicatedKey, len(all.Keys))
	for i, one := range all.Keys {
		fed[i] = auth.ReplicatedKey{Key: auth.Key{ID: one.ID, Name: one.Name, Team: one.Team, Admin: one.Admin}, Hash: one.Hash}
	}
	if err := k.book.Set(fed); err != nil {
		k.log.Warn("some keys do not count", "error", err)
	}
	k.limits.SetTeams(all.Teams)
}
