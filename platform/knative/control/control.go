package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/apis/serving"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"
	servinginformers "knative.dev/serving/pkg/client/informers/externalversions"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/knative/election"
	"github.com/thaw-dev/thaw/platform/knative/slim"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

type Options struct {
	Config    *rest.Config
	Namespace string // of thaw itself, and of its lease
	Knative   string // namespace of Knative Serving; "" is knative-serving
	Name      string // of this controller, for logs
	Advertise string // HOST:PORT at which peers reach it
	Listener  net.Listener
	Token     string // that peers present
	// control streams need certificates of the Secret thaw-control-tls, which the leader renews; Token is that Secret's
	Secure      bool
	Policy      placement.Policy
	Public      string                    // name of the activators' Service, for the status of Ingresses
	Private     string                    // the same, cluster-local
	NewForesee  func() *foresight.Options // called once per term
	WebhookAddr string                    // HOST:PORT of the scheduler hint webhook; "": none
	Version     string
	Log         *slog.Logger
	Samples     []telemetry.Source // metrics of the program, beside the controller's
	// EarlyDispatch lets activators send the first queued requests to a pod before it is
	// READY; its shim holds them.
	EarlyDispatch bool
}

// settleWait bounds how long a new leader collects reports before it sends activators
// snapshots.
const settleWait = 3 * time.Second

// control is one controller process, leading or not.
type control struct {
	o           Options
	kube        kubernetes.Interface
	serving     servingclient.Interface
	networking  networking.Interface
	core        informers.SharedInformerFactory
	deployments informers.SharedInformerFactory
	knative     servinginformers.SharedInformerFactory
	ingress     netinformers.SharedInformerFactory
	synced      []cache.InformerSynced // of all informers
	election    *election.Election
	metrics     *telemetry.Registry
	secrets     *knative.ControlSecrets

	term atomic.Pointer[leaderTerm] // nil: another controller leads
}

// Run runs a controller until ctx ends; it returns nil then, or why it could not go on.
func Run(ctx context.Context, o Options) error {
	if o.Token == "" {
		return errors.New("control: Token is needed")
	}
	c := &control{o: o}
	if err := c.open(); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.secrets.Reload(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx until the last term has ended
	defer stopServing()
	parts.Go(func() { c.serve(serving, func(err error) { stop(err) }) })

	c.core.Start(ctx.Done())
	c.deployments.Start(ctx.Done())
	c.knative.Start(ctx.Done())
	c.ingress.Start(ctx.Done())
	defer func() {
		stop(nil)
		c.core.Shutdown()
		c.deployments.Shutdown()
		c.knative.Shutdown()
		c.ingress.Shutdown()
	}()
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return ctx.Err()
	}
	err := c.election.Run(ctx, c.lead)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// serve serves the controller's port until ctx ends. With certificates, control streams
// come over mTLS and the control API over TLS; plain connections get probes and metrics.
func (c *control) serve(ctx context.Context, failed func(error)) {
	var all sync.WaitGroup
	defer all.Wait()
	part := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
				failed(err)
			}
		})
	}
	server := func(l net.Listener, h http.Handler) {
		s := newServer(h, c.o.Log)
		part(func() error { return s.Serve(l) })
		context.AfterFunc(ctx, func() { s.Close() })
	}
	part(func() error { return c.secrets.Run(ctx) })
	if !c.o.Secure {
		server(c.o.Listener, c.routes(true))
		return
	}
	split := mtls.NewSplit(c.o.Listener, mtls.OpenServer(c.secrets.Identity, controlstream.NameActivator, controlstream.NameLoader), c.o.Log)
	part(func() error { return split.Run(ctx) })
	server(split.Secure, c.routes(true))
	server(split.Plain, c.routes(false))
}

// newServer makes a server of the controller's port. Requests have no time of their own:
// control streams last.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	bounded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer httpserver.EndUnread(w, r)
		h.ServeHTTP(w, r)
	})
	s := &http.Server{Handler: bounded, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	controlstream.Configure(s)
	return s
}

// tokens lists those that peers may present.
func (c *control) tokens() []string {
	if !c.o.Secure {
		return []string{c.o.Token}
	}
	return c.secrets.Tokens()
}

func (c *control) open() error {
	config := rest.CopyConfig(c.o.Config)
	if config.QPS == 0 {
		// a burst of wakes is a burst of writes
		config.QPS, config.Burst = 200, 400
	}
	var err error
	if c.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if c.serving, err = servingclient.NewForConfig(config); err != nil {
		return err
	}
	if c.networking, err = networking.NewForConfig(config); err != nil {
		return err
	}
	lean := informers.WithTransform(slim.Object)
	c.core = informers.NewSharedInformerFactoryWithOptions(c.kube, 0, lean)
	c.deployments = informers.NewSharedInformerFactoryWithOptions(c.kube, 0, lean,
		informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = serving.RevisionLabelKey }))
	c.knative = servinginformers.NewSharedInformerFactoryWithOptions(c.serving, 0, servinginformers.WithTransform(slim.Object),
		servinginformers.WithCustomResyncConfig(map[metav1.Object]time.Duration{&autoscalingv1alpha1.PodAutoscaler{}: autoscale.Resync}))
	c.ingress = netinformers.NewSharedInformerFactory(c.networking, autoscale.Resync)
	for _, i := range []cache.SharedIndexInformer{
		c.core.Core().V1().Pods().Informer(), c.core.Core().V1().Nodes().Informer(), c.core.Core().V1().Services().Informer(),
		c.core.Core().V1().Namespaces().Informer(), c.core.Core().V1().ResourceQuotas().Informer(),
		c.deployments.Apps().V1().Deployments().Informer(),
		c.knative.Autoscaling().V1alpha1().PodAutoscalers().Informer(), c.knative.Serving().V1().Revisions().Informer(), c.knative.Serving().V1().Services().Informer(),
		c.ingress.Networking().V1alpha1().Ingresses().Informer(),
	} {
		if err := i.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
			c.o.Log.Warn("the API server cannot be watched", "error", err)
		}); err != nil {
			return err
		}
		c.synced = append(c.synced, i.HasSynced)
	}
	c.election = election.New(c.kube, c.o.Namespace, c.o.Name, c.o.Advertise, c.o.Log)
	c.secrets = knative.NewControlSecrets(knative.ControlSecretsOptions{
		Secrets: c.kube.CoreV1().Secrets(c.o.Namespace), Secure: c.o.Secure, Leads: c.election.HoldsLease, Log: c.o.Log,
		Changed: func() {
			if r := c.term.Load(); r != nil {
				r.teams.Changed()
			}
		},
	})
	c.metrics = telemetry.NewProcess(c.o.Samples...)
	return nil
}

// routes is the handler of the controller's port. full is false for plain connections
// beside TLS ones: these get probes, and metrics by their token, only.
func (c *control) routes(full bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := c.term.Load()
		switch {
		case r == nil && c.election.Leader() == "":
			http.Error(w, "no leader is known", http.StatusServiceUnavailable)
		case r != nil && !r.settled.Load():
			http.Error(w, "collecting reports of running replicas", http.StatusServiceUnavailable)
		default:
			json.NewEncoder(w).Encode(map[string]any{"leads": r != nil, "leader": c.election.Leader()})
		}
	})
	if !full || !c.o.Secure { // over TLS the control API has them, for callers with a key
		var metrics http.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			registry := c.metrics
			if r := c.term.Load(); r != nil {
				registry = r.metrics
			}
			registry.Handler().ServeHTTP(w, req)
		})
		if c.o.Secure {
			metrics = telemetry.WithToken(metrics, c.secrets.MetricsToken)
		}
		mux.Handle("GET /metrics", metrics)
	}
	idle := controlstream.NewHub(controlstream.HubOptions{Tokens: c.tokens, Leads: func() (bool, string) { return false, c.election.Leader() },
		Log: c.o.Log})
	mux.HandleFunc(controlstream.Endpoint, func(w http.ResponseWriter, req *http.Request) {
		if c.o.Secure && (req.TLS == nil || len(req.TLS.PeerCertificates) == 0) {
			http.Error(w, "control streams need a certificate", http.StatusForbidden)
			return
		}
		if r := c.term.Load(); r != nil {
			r.hub.ServeHTTP(w, req)
			return
		}
		idle.ServeHTTP(w, req)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		if !full {
			http.Error(w, "the control API is served over TLS only, at this port", http.StatusForbidden)
			return
		}
		if r := c.term.Load(); r != nil {
			r.api.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Thaw-Leader", c.election.Leader())
		w.Header().Set("Retry-After", "1")
		http.Error(w, `{"error":{"message":"This controller does not lead; another one does.","type":"server_error","code":"not_leading"}}`, http.StatusMisdirectedRequest)
	})
	return mux
}
