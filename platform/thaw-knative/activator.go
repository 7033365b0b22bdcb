package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

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
	"github.com/thaw-dev/thaw/platform/memlimit"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

type activatorSettings struct {
	Addr          string             `json:"addr" default:":8080" help:"where requests from outside come in"`
	PrivateAddr   string             `json:"private-addr" default:":8081" help:"where requests from inside the cluster come in"`
	MetricsAddr   string             `json:"metrics-addr" default:":9090" help:"where /metrics, /healthz and /readyz are"`
	MetricsToken  string             `json:"metrics-token-file" help:"file with the token that /metrics wants as Authorization: Bearer; read again at each request; empty: it wants none"`
	Controller    string             `json:"controller" help:"HOST:PORT of the controller; all addresses of HOST are tried"`
	TokenFile     string             `json:"token-file" help:"file with the token of the control stream"`
	Certs         string             `json:"certs" help:"folder with ca.crt, tls.crt and tls.key by which the controller and this one know each other; read again when they change; empty dials plainly"`
	ID            string             `json:"id" env:"POD_NAME" help:"unique name of this activator" shown:"the host's name"`
	ShutdownDelay functions.Duration `json:"shutdown-delay" default:"3s" help:"after SIGTERM, how long new requests are accepted while routes to this activator are withdrawn"`
	Drain         functions.Duration `json:"drain" default:"1m40s" help:"after SIGTERM, how long active requests may go on"`
	sharedActivator
	kit.LogSettings `defaults:"log-format=json"`
}

// sharedActivator are the settings of an activator that install also has and passes on.
type sharedActivator struct {
	PublicAPI    bool     `json:"public-api" default:"false" help:"serve the control API (/api/v1/) to requests from outside the cluster too, not to those from inside alone"`
	TrustedProxy []string `json:"trusted-proxy" help:"address or range of a load balancer whose X-Forwarded-Proto is believed; may be repeated" shown:"private addresses"`
	cli.RequestSettings
}

func (c *command) activatorPart() *kit.Command {
	o := new(activatorSettings)
	return c.partCommand("activator", "Serve requests in a cluster, and hold those whose model is cold",
		`  thaw-knative activator --controller thaw-controller.thaw-system:8090 --token-file /run/thaw/token
  thaw-knative activator --addr 127.0.0.1:8080 --private-addr 127.0.0.1:8081 --metrics-addr 127.0.0.1:9090 \
      --controller 127.0.0.1:8090 --token-file token --log-format text`,
		o, o.check, func(ctx context.Context) error { return o.run(ctx, c) })
}

func (s *activatorSettings) check() error {
	defaultID(&s.ID)
	switch _, _, err := net.SplitHostPort(s.Controller); {
	case s.Controller == "":
		return errors.New("--controller is missing: HOST:PORT, such as thaw-controller.thaw-system:8090")
	case err != nil:
		return fmt.Errorf("--controller %s is no HOST:PORT, such as thaw-controller.thaw-system:8090", kit.Plain(s.Controller))
	case s.ID == "":
		return errors.New("--id is missing: the name of the pod")
	case s.TokenFile == "":
		return errNoToken
	case s.ShutdownDelay < 0 || s.Drain <= 0:
		return errors.New("--shutdown-delay and --drain cannot be less than nothing: such as 3s and 100s")
	}
	if _, err := gateway.ParsePrefixes(s.TrustedProxy); err != nil {
		return fmt.Errorf("--trusted-proxy: %w", err)
	}
	return s.Check()
}

// run serves requests until ctx ends. Shutdown follows the data: readiness fails, so
// that no new requests are routed here; held requests are answered; then streams end.
func (s *activatorSettings) run(ctx context.Context, c *command) error {
	token, err := kit.ReadToken(s.TokenFile)
	if err != nil {
		return err
	}
	certificates, err := controlstream.Certified(s.Certs)
	if err != nil {
		return &kit.Error{What: "--certs " + s.Certs, Err: err, Hint: "ca.crt, tls.crt and tls.key of the Secret thaw-control-tls"}
	}
	proxies, err := gateway.ParsePrefixes(s.TrustedProxy)
	if err != nil {
		return err
	}
	log := s.Open(c.Err)
	defer log.Close()
	plan := memlimit.Apply(memlimit.Alone, log.Logger)
	registry := telemetry.NewProcess(telemetry.BuildInfo(cli.Version))

	keys := &keyReceiver{store: auth.NewReplicatedKeyStore(), limits: &ratelimit.Limits{}, log: log.Logger}
	engines := upstream.New(upstream.Options{Framed: true})
	defer engines.Close()
	var gate *gateway.Gateway // made before the control stream runs
	stream := controlstream.NewActivator(controlstream.ActivatorOptions{
		ClientOptions: controlstream.ClientOptions{Addr: s.Controller, Token: token, TLS: certificates, Log: log.Logger,
			Hello: controlstream.Hello{ID: s.ID, Version: cli.Version}, Reread: func() (string, error) { return kit.ReadToken(s.TokenFile) }},
		Keys: keys.set, RateLimits: keys.limits, Table: func(t *controlstream.Table) { gate.SetTable(t) },
	})
	act := activator.New(activator.Options{
		Waker: stream, Keys: keys.store, Limits: keys.limits, Engines: engines, Hold: activator.HoldMode(s.Hold), BufferBytes: plan.Bodies,
		KeyRequests: httpserver.NewBudget(int64(plan.Connections), s.ShareOf(int64(plan.Connections))),
		OnFirstByte: stream.FirstToken, Metrics: registry, Log: log.Requests,
	})
	gate = gateway.New(gateway.Options{Activator: act, Leader: stream.Leader, LeaderTLS: certificates, PublicAPI: s.PublicAPI,
		TrustedProxies: proxies, MaxBody: int64(s.MaxBody), Bodies: httpserver.NewBudget(plan.Bodies, s.ShareOf(plan.Bodies)),
		Connections: httpserver.NewConnections(plan.Connections, int(s.ShareOf(int64(plan.Connections))),
			registry.Counter("thaw_connections_dropped_total")),
		Count: registry.Counter("thaw_gateway_requests_total"), Log: log.Logger})
	stream.Attach(gate.DataPath())
	keys.limits.ShareLimits(stream.ReportUsageNow)
	registry.Add(act.Samples, log.Samples, connectedMetric(stream))

	var listeners []net.Listener
	for _, x := range [][2]string{{"--addr", s.Addr}, {"--private-addr", s.PrivateAddr}, {"--metrics-addr", s.MetricsAddr}} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", x[1])
		if err != nil {
			return &kit.Error{What: "cannot listen on " + x[1], Err: err, Hint: "another address: " + x[0]}
		}
		defer l.Close()
		listeners = append(listeners, l)
	}
	public, private, metrics := listeners[0], listeners[1], listeners[2]
	var draining atomic.Bool
	side := sideHandler(s.metrics(registry), func() []string { return missing(&draining, stream) })

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
	part(httpserver.NewProcTuner().Run)
	part(plan.PaceCollector)
	part(stream.Run)
	part(func(ctx context.Context) error { return telemetry.Serve(ctx, metrics, side, log.Logger) })
	part(func(context.Context) error { return gate.Serve(public, private) })
	log.Info("serving", "addr", public.Addr().String(), "private", private.Addr().String(), "metrics", metrics.Addr().String(), "id", s.ID)
	s.drainRequests(ctx, life, &draining, gate, log.Logger)
	cause := context.Cause(life)
	end(nil)
	parts.Wait()
	if cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// drainRequests waits until ctx or life ends, and shuts the gate down: first readiness
// fails for ShutdownDelay, then active requests have the rest of drain.
func (s *activatorSettings) drainRequests(ctx, life context.Context, draining *atomic.Bool, gate *gateway.Gateway, log *slog.Logger) {
	select {
	case <-ctx.Done():
		log.Info("draining", "for", s.Drain.String())
	case <-life.Done():
	}
	draining.Store(true)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Drain.Std())
	defer cancel()
	select {
	case <-time.After(min(s.ShutdownDelay, s.Drain).Std()):
	case <-life.Done():
	}
	if err := gate.Shutdown(drain); err != nil {
		log.Warn("requests were cut at the drain deadline", "error", err)
	}
}

func (s *activatorSettings) metrics(registry *telemetry.Registry) http.Handler {
	if s.MetricsToken == "" {
		return registry.Handler()
	}
	return telemetry.WithToken(registry.Handler(), func() string {
		token, _ := kit.ReadToken(s.MetricsToken) // without one it opens to nothing
		return token
	})
}

// sideHandler is what stands beside the requests: metrics, and whether there are any to
// be taken.
func sideHandler(metrics http.Handler, missing func() []string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
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

// missing lists the reasons not to be ready. An activator that loses its controller
// stays ready and serves with what it knows.
func missing(draining *atomic.Bool, stream *controlstream.Activator) []string {
	if draining.Load() {
		return []string{"shutting down"}
	}
	select {
	case <-stream.Synced():
		return nil
	default:
		return []string{"the controller has not sent the models yet"}
	}
}

// connectedMetric is 1 while the controller is connected.
func connectedMetric(stream *controlstream.Activator) telemetry.Source {
	return telemetry.Gauge("thaw_controller_connected", func() float64 {
		if stream.Connected() {
			return 1
		}
		return 0
	})
}

// keyReceiver stores the keys of the cluster, which the controller sends.
type keyReceiver struct {
	store  *auth.KeyStore
	limits *ratelimit.Limits
	log    *slog.Logger
}

func (k *keyReceiver) set(all controlstream.Keys) {
	if err := k.store.Set(all.Keys); err != nil {
		k.log.Warn("some keys do not count", "error", err)
	}
	k.limits.SetTeams(all.Teams)
}
