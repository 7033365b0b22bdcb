package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches"
	"github.com/thaw-dev/thaw/activator/browser"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/socket"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/console"
	"github.com/thaw-dev/thaw/platform/enroll"
	"github.com/thaw-dev/thaw/platform/local"
	"github.com/thaw-dev/thaw/platform/memlimit"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/sizer"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// serve is `thaw serve`: catalog, backend, data path and control API behind one
// address. It shuts down in the order of the data: new requests are refused, queued
// ones get an error, running streams finish, then the engines end.
func serve(ctx context.Context, c cli.ServeConfig, stdout, stderr io.Writer) error {
	log := c.Open(stderr)
	defer log.Close()
	listeners, err := listen(c.Addr)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		defer l.Close()
	}
	s, err := openServer(&c, log)
	if err != nil {
		return err
	}
	defer s.close()
	s.onCatalogChange(catalog.Change{Problems: s.catalog.Problems()})

	// The parts run until the last request has been answered: ctx ending begins
	// the drain, stop ends the parts.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	parts, life := errgroup.WithContext(life)
	part := func(run func(context.Context) error) { parts.Go(func() error { return run(life) }) }
	part(httpserver.NewProcTuner().Run)
	part(s.memory.PaceCollector)
	part(s.backend.Run)
	part(s.remotes.Run)
	part(s.money.Run)
	part(s.batches.Run)
	part(s.runSizes)
	part(func(ctx context.Context) error { return ignoreCancel(s.catalog.Watch(ctx, s.onCatalogChange)) })
	for _, l := range listeners {
		part(func(context.Context) error { return s.front.Serve(l) })
	}
	if s.agentsListener != nil {
		part(func(ctx context.Context) error { return s.agents.Serve(ctx, s.agentsListener) })
	}
	select {
	case <-s.backend.Ready():
		s.state.serving.Store(true)
		s.log.Info("serving", "addr", listeners[0].Addr().String(), "functions", len(s.catalog.Models()), "data", c.Data)
		if c.LogFormat != "json" { // where both streams are one log, each line is JSON
			fmt.Fprintf(stdout, "thaw serves on http://%s\n", listeners[0].Addr())
		}
	case <-life.Done():
	case <-ctx.Done():
	}

	select {
	case <-ctx.Done():
		s.log.Info("draining", "for", c.Drain.String())
	case <-life.Done():
	}
	s.state.draining.Store(true)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain.Std())
	defer cancel()
	s.act.Drain(drain)
	s.batches.Drain(drain)
	if err := s.front.Shutdown(drain); err != nil {
		s.log.Warn("requests were cut at the drain deadline", "error", err)
	}
	stop()
	return ignoreCancel(parts.Wait())
}

// server is what `thaw serve` consists of. openServer starts none of it.
type server struct {
	log     *slog.Logger
	catalog *catalog.Catalog
	limits  *ratelimit.Limits
	backend *local.Local
	engines *upstream.Client
	remotes *remote.Remotes
	money   *spend.Ledger
	act     *activator.Activator
	batches *batches.Server
	front   httpserver.Server
	state   readiness
	sizes   sizer.Sizer
	sized   *sizer.Folder // of the folder of functions
	memory  memlimit.Plan

	problems       map[catalog.Problem]bool // of files, announced already; of onCatalogChange alone
	agents         *enroll.Server
	agentsListener net.Listener // nil: no agents of other machines
}

func (s *server) close() {
	s.engines.Close()
	s.remotes.Close()
	if s.agentsListener != nil {
		s.agentsListener.Close()
	}
}

// onCatalogChange applies changed teams and functions.
func (s *server) onCatalogChange(change catalog.Change) {
	s.announceProblems(change.Problems)
	s.limits.SetTeams(functions.ConvertAll(s.catalog.Teams(), func(t *functions.Team) functions.Team { return *t }))
	s.remotes.Set(s.catalog.Remotes())
	s.act.SetRouters(s.catalog.Routers(), teamData(s.catalog))
	s.act.SetCompositions(s.catalog.Compositions())
	s.backend.Changed()
}

// openServer opens the data folder and makes all parts. It makes c.Data absolute:
// engines get paths below it and have another working directory.
func openServer(c *cli.ServeConfig, log *kit.Log) (*server, error) {
	loopback, err := onLoopback(c.Addr)
	if err != nil {
		return nil, err
	}
	if c.Data, err = makeDataFolder(c.Data); err != nil {
		return nil, err
	}
	cat, sized, err := openCatalog(c)
	if err != nil {
		return nil, err
	}
	keys, admin, err := credentials(c.Data)
	if err != nil {
		return nil, err
	}
	keys.Trust(admin)
	var backend *local.Local // made below
	agents, err := enroll.Open(enroll.Options{
		Dir: filepath.Join(c.Data, "agents"), Log: log.Logger,
		Heartbeat: func(hb functions.Heartbeat, sameMachine bool) error { return backend.OnHeartbeat(hb, sameMachine) },
		Removed:   func(agent string) { backend.Forget(agent) },
		Peers:     func(agent string) []functions.Peer { return backend.Peers(agent) },
		Own:       func() string { return backend.NodeID() },
	})
	if err != nil {
		return nil, err
	}
	if backend, err = openBackend(c, cat, agents, loopback, log.Logger); err != nil {
		return nil, err
	}
	plan := memlimit.Apply(memlimit.BesideEngines, log.Logger)
	metrics := telemetry.NewProcess(backend.Orchestrator.Samples, log.Samples, telemetry.BuildInfo(cli.Version))
	money, err := spend.Open(c.Data)
	if err != nil {
		return nil, err
	}
	s := &server{
		memory: plan, money: money, remotes: remote.New(remote.Options{Getenv: os.Getenv, Ledger: money, Currency: c.Currency,
			Metrics: metrics, Log: log.Logger}),
		log: log.Logger, catalog: cat, backend: backend, limits: &ratelimit.Limits{},
		engines: upstream.New(upstream.Options{TLS: backend.EngineTLS}), agents: agents,
	}
	answers := cache.NewStore(min(int64(c.CacheBytes), plan.Limit/4), metrics)
	if answers != nil {
		answers.Changed = backend.WeightsChanged
	}
	s.act = activator.New(activator.Options{
		Remotes: s.remotes, Cache: answers, GPUHourPrice: c.GPUHourPrice, Currency: c.Currency, Prewarm: backend.PrewarmBriefly,
		Packing: backend.Packing, Release: backend.Release, Stage: backend.StageAhead, Waker: backend, Adapters: backend,
		Keys: keys, Limits: s.limits, Engines: s.engines, Open: loopback, Hold: activator.HoldMode(c.Hold), BufferBytes: plan.Bodies,
		KeyRequests: httpserver.NewBudget(int64(plan.Connections), c.ShareOf(int64(plan.Connections))), Metrics: metrics, Log: log.Requests,
	})
	metrics.Add(s.act.Samples, s.remotes.Samples, answers.Samples)
	if s.batches, err = openBatches(c, s.act, cat, backend.GPUs, money, s.limits, keys, metrics, log.Logger); err != nil {
		return nil, err
	}
	s.remotes.Attach(s.act)
	backend.Attach(s.act)
	s.state.superseded = backend.Superseded
	agentsAPI, agentsURL, err := s.listenForAgents(c.AgentsAddr)
	if err != nil {
		return nil, err
	}
	s.sized, s.sizes = sized, sizer.Sizer{Sources: nodestore.OpenSources, Nodes: backend.Nodes}
	control := api.New(api.Options{
		Platform: api.Platform{Catalog: cat, State: backend, History: history{backend, s.act}, Spending: s.remotes, Demand: s.demand,
			TeamUse: backend.TeamUse, Usage: func(team string) ratelimit.Usage { return s.limits.Usage(team, time.Now()) }},
		Access:    api.Access{Keys: keys, Open: loopback, Hosts: c.Host},
		Functions: api.Functions{Starter: backend, RemoteState: s.remoteState, FileProblem: cat.FileProblem, Sizer: s.sizes},
		Caches:    api.Caches{Stores: backend, ForgetAnswers: answers.Purge},
		Decisions: api.Decisions{Log: s.act.Decisions(), DryRoute: s.act.DryRoute, Composed: s.act.Composed},
		Requests:  s.act, Ahead: backend, Agents: agentsAPI, AgentsURL: agentsURL, Logs: backend.Logs, Changed: backend.Changes,
		Explain: backend.Explain, Ready: s.state.missing, Metrics: metrics.Text, Version: cli.Version, Log: log.Logger,
	})
	s.front = s.newFront(c, loopback, control, metrics)
	return s, nil
}

// openCatalog opens the definitions, and the resources that were worked out for those that
// leave them out.
func openCatalog(c *cli.ServeConfig) (*catalog.Catalog, *sizer.Folder, error) {
	sized, err := sizer.OpenFolder(filepath.Join(c.Data, "resources.json"))
	if err != nil {
		return nil, nil, err
	}
	cat, err := catalog.Open(catalog.Options{Complete: sized.Complete, Folder: c.Functions, Deployed: filepath.Join(c.Data, "functions"),
		Plain: httpsource.NewHostTrust(os.Getenv).Trusts, Given: givenRemotes(os.Getenv)})
	if err != nil {
		return nil, nil, &kit.Error{What: "the functions", Err: err,
			Hint: "--functions DIR or THAW_FUNCTIONS names a folder of model files; thaw deploy -f FILE adds one file"}
	}
	return cat, sized, nil
}

// makeDataFolder makes the data folder, and returns its absolute path.
func makeDataFolder(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", &kit.Error{What: "the data folder", Err: err,
			Hint: "--data DIR or THAW_DATA names a folder that this user may write, on a disk with room"}
	}
	return path, nil
}

// listenForAgents opens the port of the agents of other machines; with addr "" none may join.
func (s *server) listenForAgents(addr string) (api.Agents, string, error) {
	if addr == "" {
		return nil, "", nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, "", &kit.Error{What: "cannot listen on " + addr + " for agents", Err: err, Hint: "another address: --agents-addr HOST:PORT"}
	}
	s.agentsListener = l
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, "", err
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return nil, "", err
		}
	}
	return s.agents, "https://" + net.JoinHostPort(host, port), nil
}

// openBackend makes the backend of this machine as the configuration has it.
func openBackend(c *cli.ServeConfig, cat *catalog.Catalog, agents *enroll.Server, loopback bool, log *slog.Logger) (*local.Local, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	peerAddr := c.PeerAddr
	if peerAddr == "auto" && loopback {
		peerAddr = "off" // one open port is enough for one machine
	}
	peers, err := peering(peerAddr, c.Addr, "", agents.PeerTLS(), c.Peer)
	if err != nil {
		return nil, err
	}
	foresee := foresight.Open(c.Data, time.Now(), log)
	foresee.StartAhead, foresee.Budget = c.Prewarm == "on", c.PrewarmBudget.Std()
	config := agentConfig(c.Data, exe, c.NodeSettings, c.EngineSettings)
	config.Orphan, config.KeepEngines, config.Peering, config.Log = c.OrphanTimeout.Std(), c.LeaveEngines, peers, log
	return local.New(local.Options{
		Config: config, Catalog: cat, AgentTLS: agents.AgentTLS, Policy: c.Policy(), Foresight: foresee,
		Alone: func() bool { return len(agents.Agents()) == 0 },
	})
}

// credentials opens the keys and the admin token of a data folder, made at the first start.
func credentials(dir string) (keys *auth.KeyStore, admin string, err error) {
	if keys, err = auth.Open(filepath.Join(dir, "keys.json")); err != nil {
		return nil, "", err
	}
	admin, err = auth.AdminToken(dir)
	return keys, admin, err
}

// newFront makes the HTTP server of the data path, the sockets and the control API.
func (s *server) newFront(c *cli.ServeConfig, loopback bool, control *api.API, metrics *telemetry.Registry) httpserver.Server {
	connections := s.memory.Connections
	ofOne := int(c.ShareOf(int64(connections)))
	sockets := newSockets(s.act, s.backend, metrics, connections, ofOne, s.log)
	o := httpserver.Options{
		MaxBody: int64(c.MaxBody), Logger: s.log, Bodies: httpserver.NewBudget(s.memory.Bodies, c.ShareOf(s.memory.Bodies)),
		Connections: httpserver.NewConnections(connections, ofOne, metrics.Counter("thaw_connections_dropped_total")),
	}
	guard, strict := browser.New(loopback, c.Host, c.Origin), browser.New(loopback, c.Host, nil)
	named, own := guard.Wrap(sockets.Serve), strict.Wrap(sockets.Serve)
	pages := strict.ForPages().Wrap(console.New(cli.Version).Serve)
	o.Handler = dispatch(guard.Wrap(s.act.Serve), guard.Wrap(s.batches.Serve), func(req *httpserver.Request, res *httpserver.Response) {
		if socket.TakesOrigins(req.Path) {
			named(req, res)
		} else {
			own(req, res)
		}
	}, func(req *httpserver.Request, res *httpserver.Response) {
		if console.ServesPath(req.Path) {
			pages(req, res)
		} else {
			control.Serve(req, res)
		}
	})
	o.Authorize = authorizeBy(guard.WrapAuthorize(s.act.Authorize), guard.WrapAuthorize(call.Authorize(s.act.Caller)), pages, control)
	o.Receive = s.batches.Receive
	o.Refused = func(req *httpserver.Request, res *httpserver.Response) {
		if batches.ServesPath(req.Path) || activator.ServesPath(req.Path) || socket.TakesOrigins(req.Path) {
			guard.SetFields(req, res)
		}
	}
	o.Upgrades = socket.Upgrades
	return httpserver.NewFiberServer(o)
}

// dispatch passes a request to the data path, to the files and batches, to the sockets or
// to the control API.
func dispatch(data, files, sockets, control httpserver.Handler) httpserver.Handler {
	return func(req *httpserver.Request, res *httpserver.Response) {
		switch {
		case batches.ServesPath(req.Path):
			files(req, res)
		case activator.ServesPath(req.Path):
			data(req, res)
		case socket.ServesPath(req.Path):
			sockets(req, res)
		default:
			control(req, res)
			res.Set("x-request-id", openai.NewID())
		}
	}
}

// headCheck is what Authorize of [httpserver.Options] is.
type headCheck = func(*httpserver.Request, *httpserver.Response) (key string, ok bool)

// authorizeBy has the one that dispatch passes a request to check its head.
// Of files, batches and sockets only the key is checked.
func authorizeBy(data, keyed headCheck, pages httpserver.Handler, control *api.API) headCheck {
	return func(req *httpserver.Request, res *httpserver.Response) (key string, ok bool) {
		switch {
		case batches.ServesPath(req.Path) || socket.ServesPath(req.Path):
			return keyed(req, res)
		case activator.ServesPath(req.Path):
			return data(req, res)
		case console.ServesPath(req.Path): // takes no body, so this is its answer
			pages(req, res)
			res.Set("x-request-id", openai.NewID())
			return "", false
		}
		if key, ok = control.Authorize(req, res); !ok {
			res.Set("x-request-id", openai.NewID())
		}
		return key, ok
	}
}

// readiness returns why the server is not ready, if it is not.
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
		return []string{"the agent has not reported its engines yet"}
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

// remoteState is the state of a Remote and why it failed.
func (s *server) remoteState(name functions.Name) (functions.State, string) {
	state, problem, ok := s.remotes.State(name)
	if !ok {
		return functions.Ready, "" // it was made a moment ago
	}
	return state, problem
}

// demand is how many requests of a function are at engines and held, and since when.
func (s *server) demand(name functions.Name) (active, queued int, oldest time.Time) {
	d, _ := s.act.DemandOf(name)
	return d.Active, d.Queued, d.Oldest
}

// teamData is the class of data of each team that has set one.
func teamData(cat *catalog.Catalog) map[string]functions.DataClass {
	data := map[string]functions.DataClass{}
	for _, t := range cat.Teams() {
		if t.Spec.Data != "" {
			data[t.Metadata.Name] = t.Spec.Data
		}
	}
	return data
}

// agentConfig is the configuration of an agent by the settings that serve and agent share.
func agentConfig(data, exe string, n cli.NodeSettings, e cli.EngineSettings) agent.Config {
	return agent.Config{
		Options: agent.Options{
			Exe: exe, Version: cli.Version, Environ: os.Environ, Memory: functions.Bytes(n.Memory), Sleep: n.SleepMemory,
			Warm: agent.WarmMode(e.Warm), Confine: agent.ConfineMode(e.Confine), RefuseVulnerable: e.Vulnerable == "refuse",
		},
		Data: data, GPUs: int(n.GPUs), GPUMemory: n.GPUMemory, Store: n.Store, EngineCaches: agent.CacheMode(e.Caches),
	}
}

// ignoreCancel is nil for an end that was asked for.
func ignoreCancel(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// history completes the backend's timelines with the first token, which only the
// activator sees.
type history struct {
	*local.Local
	act *activator.Activator
}

func (h history) ColdStart(id string) (functions.Timeline, bool) {
	t, ok := h.Local.ColdStart(id)
	return h.act.WithFirstTokenPhase(t), ok
}

func (h history) ColdStarts(limit int) []functions.Timeline {
	list := h.Local.ColdStarts(limit)
	for i := range list {
		list[i] = h.act.WithFirstTokenPhase(list[i])
	}
	return list
}

// listen opens the port of `thaw serve`. 127.0.0.1 and localhost also open it on ::1, where
// that is free: some clients (Node before 20, many JVMs) know localhost by that address alone.
func listen(addr string) ([]net.Listener, error) {
	// A start that fails at a busy address leaves no folder with an admin token, which client
	// verbs would find and send.
	if _, err := onLoopback(addr); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &kit.Error{What: "cannot listen on " + addr, Err: err, Hint: "another address: thaw serve --addr 127.0.0.1:8081"}
	}
	all := []net.Listener{listener}
	if host, _, _ := net.SplitHostPort(addr); host == "127.0.0.1" || host == "localhost" {
		port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
		if other, err := net.Listen("tcp6", net.JoinHostPort("::1", port)); err == nil {
			all = append(all, other)
		}
	}
	return all, nil
}
