package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/local"
	"github.com/thaw-dev/thaw/platform/orchestrator"
	"github.com/thaw-dev/thaw/platform/placement"
)

// serve is `thaw serve`: catalogue, backend, data path and control API behind
// one door. It ends in the order of the data: no new requests, the held ones
// told, the streams out, and only then the engines.
func serve(ctx context.Context, c cli.ServeConfig, stdout, stderr io.Writer) error {
	log := logger(stderr, c.LogFormat, c.Level())
	loopback, err := onLoopback(c.Addr)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	// Engines get paths below it, and theirs is not our working directory.
	if c.Data, err = filepath.Abs(c.Data); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return fmt.Errorf("the data folder: %w", err)
	}

	cat, err := catalog.Open(catalog.Options{Folder: c.Functions, Deployed: filepath.Join(c.Data, "functions")})
	if err != nil {
		return fmt.Errorf("the functions: %w", err)
	}
	for _, p := range cat.Problems() {
		log.Error("a model file does not read", "problem", p.Error())
	}
	keys, admin, joins, err := credentials(c.Data)
	if err != nil {
		return err
	}
	keys.Trust(admin)

	where := c.PeerAddr
	if where == "auto" && loopback {
		where = "off" // one open port is enough for one machine
	}
	lending, err := peering(where, c.Addr, "", joins, c.Peer)
	if err != nil {
		return err
	}
	policy := placement.DefaultPolicy
	if policy.Eviction, err = placement.ParseEviction(c.Eviction); err != nil {
		return &kit.Error{Exit: kit.ExitUsage, What: "--eviction", Err: err}
	}
	if c.KeepAlive == "learned" {
		policy.KeepAlive = placement.Learned
	}
	foresee := orchestrator.OpenForesight(c.Data, time.Now(), log)
	foresee.StartAhead, foresee.Budget = c.Prewarm == "on", c.PrewarmBudget.Std()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	backend, err := local.New(local.Options{
		Data: c.Data, Catalog: cat, JoinToken: joins, Version: cli.Version, Exe: exe, Orphan: c.OrphanTimeout.Std(),
		GPUs: gpuCount(c.GPUs), GPUMemory: c.GPUMemory, Memory: memorySize(c.Memory), Sleep: c.SleepMemory, Store: c.Store, Leave: c.LeaveEngines, Warm: agent.WarmMode(c.Warm), Caches: agent.CacheMode(c.Caches),
		Environ: os.Environ, Peering: lending, Policy: policy, Foresee: foresee, Log: log,
	})
	if err != nil {
		return err
	}
	limits := &ratelimit.Limits{}
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	requests := httpserver.NewBatchWriter(stderr) // one line a request, not one write
	data := activator.New(activator.Options{
		Waker: backend, Adapters: backend, Who: keys, Limits: limits, Engines: engines, Open: loopback, Hold: activator.HoldMode(c.Hold),
		Metrics: registry, Log: logger(requests, c.LogFormat, c.Level()),
	})
	backend.Attach(data)

	registry.MustRegister(backend.Orchestrator, buildInfo())

	var state readiness
	state.superseded = backend.Superseded
	control := api.New(api.Options{
		Explain: backend.Explain,
		Catalog: cat, Keys: keys, World: backend, History: history{backend, data}, Hand: backend, Requests: data, Stores: backend, Ahead: backend,
		Demand:    func(n functions.Name) (active, queued int) { d, _ := data.DemandOf(n); return d.Active, d.Queued },
		Usage:     func(team string) ratelimit.Usage { return limits.Usage(team, time.Now()) },
		TeamUse:   backend.TeamUse,
		Heartbeat: backend.OnHeartbeat, Peers: backend.Peers, Logs: logs(backend), Changed: backend.Changes, Ready: state.missing,
		JoinToken: joins, Open: loopback, Hosts: c.Host, Metrics: registry, Version: cli.Version, Log: log,
	})
	front := httpserver.NewFiberServer(httpserver.Options{
		Handler: dispatch(activator.GuardBrowser(loopback, c.Host, data.Serve), control.Serve), MaxBody: int64(c.MaxBody), Logger: log,
	})
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return &kit.Error{What: "cannot listen on " + c.Addr, Err: err, Hint: "another address: thaw serve --addr 127.0.0.1:8081"}
	}

	told := func(catalog.Change) {
		limits.SetTeams(catalogTeams(cat))
		backend.Changed()
	}
	told(catalog.Change{})

	// Each part lives until the parts that need it have ended: life is the
	// backend's, ctx the operator's wish.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	var parts sync.WaitGroup
	part := func(f func(context.Context) error) {
		parts.Go(func() {
			if err := f(life); err != nil {
				end(err)
			}
		})
	}
	part(requests.Run)
	part(httpserver.NewProcTuner().Run)
	part(backend.Run)
	part(func(ctx context.Context) error { return ignoreCancel(cat.Watch(ctx, told)) })
	part(func(context.Context) error { return front.Serve(listener) })
	select {
	case <-backend.Ready():
		state.serving.Store(true)
		log.Info("serving", "addr", listener.Addr().String(), "functions", len(cat.Models()), "data", c.Data)
		fmt.Fprintf(stdout, "thaw serves on http://%s\n", listener.Addr())
	case <-life.Done():
	case <-ctx.Done():
	}

	select {
	case <-ctx.Done():
		log.Info("draining", "for", c.Drain.String())
	case <-life.Done():
	}
	state.draining.Store(true)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain.Std())
	defer cancel()
	data.Drain(drain)
	if err := front.Shutdown(drain); err != nil {
		log.Warn("requests were cut at the drain deadline", "error", err)
	}
	cause := context.Cause(life)
	end(nil)
	parts.Wait()
	if cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// credentials opens the keys and the two tokens of a data folder, made at the
// first start.
func credentials(dir string) (keys *auth.KeyStore, admin, join string, err error) {
	if keys, err = auth.Open(filepath.Join(dir, "keys.json")); err != nil {
		return nil, "", "", err
	}
	if admin, err = auth.AdminToken(dir); err != nil {
		return nil, "", "", err
	}
	join, err = auth.JoinToken(dir)
	return keys, admin, join, err
}

// dispatch sends a request to the data path or to the control API.
func dispatch(data, control httpserver.Handler) httpserver.Handler {
	return func(req *httpserver.Request, res *httpserver.Response) {
		if activator.ServesPath(req.Path) {
			data(req, res)
			return
		}
		control(req, res)
		res.Set("x-request-id", openai.NewID())
	}
}

// buildInfo is which build this is.
func buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "thaw_build_info", Help: "1; the labels tell the build.",
		ConstLabels: prometheus.Labels{"version": cli.Version, "go": runtime.Version()},
	}, func() float64 { return 1 })
}

// readiness is why requests are not taken.
type readiness struct {
	serving, draining atomic.Bool
	superseded        func() bool
}

func (r *readiness) missing() []string {
	switch {
	case r.superseded():
		return []string{"a newer server commands the agents, this one starts nothing any more"}
	case r.draining.Load():
		return []string{"shutting down"}
	case !r.serving.Load():
		return []string{"the agent is finding out what runs"}
	}
	return nil
}

// onLoopback reports whether an address is reached from this machine only.
func onLoopback(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, &kit.Error{Exit: kit.ExitUsage, What: "--addr " + addr, Err: err, Hint: "want HOST:PORT, such as 127.0.0.1:8080"}
	}
	if host == "localhost" {
		return true, nil
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback(), nil
}

func catalogTeams(cat *catalog.Catalog) []functions.Team {
	var out []functions.Team
	for _, t := range cat.Teams() {
		out = append(out, *t)
	}
	return out
}

func gpuCount(c cli.Count) int {
	if c.Auto {
		return -1
	}
	return c.N
}

func memorySize(s cli.Size) functions.Bytes {
	if s.Auto {
		return 0
	}
	return s.Bytes
}

// ignoreCancel is nil for an end that was asked for.
func ignoreCancel(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
