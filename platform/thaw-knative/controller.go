package main

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/control"
	"github.com/thaw-dev/thaw/platform/orchestrator"
	"github.com/thaw-dev/thaw/platform/placement"
)

// controlling is the flags of a controller.
type controlling struct {
	access                   knative.Access
	addr, advertise, place   string
	namespace, id, token     string
	knative                  string
	public, private, cluster string
	data                     string
	secure                   bool
	eviction, keepAlive      string
	prewarm                  string
	budget                   time.Duration
	near, ahead              bool
	log                      logging
}

func (c *command) controllerPart() *kit.Command {
	var o controlling
	return partCommand("controller", "Decide which models run on which nodes",
		`  thaw-knative controller --token-file /run/thaw/token
  thaw-knative controller --addr 127.0.0.1:8090 --advertise 127.0.0.1:8090 --token-file token --kubeconfig ~/.kube/config --log-format text`,
		func(f *kit.FlagSet) {
			host, _ := os.Hostname()
			f.StringVar(&o.access.Kubeconfig, "kubeconfig", "", "file that leads to the cluster [KUBECONFIG, or the pod's own account]")
			f.StringVar(&o.access.Context, "context", "", "context of it")
			f.StringVar(&o.addr, "addr", ":8090", "where activators, loaders and the control API come in")
			f.StringVar(&o.advertise, "advertise", "", "HOST:PORT at which they reach this controller [POD_IP and the port of --addr]")
			f.StringVar(&o.place, "webhook-addr", "", "address of the webhook thaw-place, which API servers ask for the node of a new pod, such as :8443; empty: no webhook")
			f.BoolVar(&o.near, "annotate-nodes", false, "write on each node, as the annotation thaw.dev/cached-models, which models' bytes are there; it takes the right to patch nodes, which the policy thaw-nodes bounds")
			f.StringVar(&o.namespace, "namespace", cmp.Or(c.getenv("POD_NAMESPACE"), "thaw-system"), "namespace of thaw itself [POD_NAMESPACE]")
			f.StringVar(&o.knative, "knative-namespace", "knative-serving", "namespace of Knative Serving, whose activators are asked for requests that come by other ingresses")
			f.StringVar(&o.id, "id", cmp.Or(c.getenv("POD_NAME"), host), "name of this controller [POD_NAME]")
			f.StringVar(&o.token, "token-file", "", "file with the token of the cluster's links")
			f.BoolVar(&o.secure, "secure", false, "take links with certificates only, those of the Secret thaw-control-tls, which is read and renewed while this runs")
			f.BoolVar(&o.ahead, "early-dispatch", true, "send the first queued requests to the starting pod, which passes them on the moment its engine is ready; else activators send them once they know")
			f.StringVar(&o.public, "public-service", "thaw", "Service before the activators, for all")
			f.StringVar(&o.private, "private-service", "thaw-local", "the same for the cluster alone")
			f.StringVar(&o.data, "data", "", "folder in which history outlives this process; empty keeps it in memory")
			o.settings(f)
			o.log.flags(f)
		},
		func(ctx context.Context) error { return o.run(ctx, c) })
}

// settings registers the flags that install also has and passes on.
func (o *controlling) settings(f *kit.FlagSet) {
	f.StringVar(&o.cluster, "cluster-domain", "cluster.local", "DNS domain of the cluster")
	f.StringVar(&o.eviction, "eviction", "lru", "which model is evicted first: lru, lfu, gdsf or next-use")
	f.StringVar(&o.keepAlive, "keep-alive", "fixed", "how long an idle replica stays: fixed (scale.idle), or learned from history")
	f.StringVar(&o.prewarm, "prewarm", "off", "start ahead of requests that history predicts: on or off")
	f.DurationVar(&o.budget, "prewarm-budget", time.Hour, "GPU time that starts ahead may take in an hour, for one team")
}

// policy validates the settings and returns the placement policy they describe.
func (o *controlling) policy() (placement.Policy, error) {
	policy := placement.DefaultPolicy
	var err error
	if policy.Eviction, err = placement.ParseEviction(o.eviction); err != nil {
		return policy, &kit.Error{Exit: kit.ExitUsage, What: "--eviction", Err: err}
	}
	switch o.keepAlive {
	case "learned":
		policy.KeepAlive = placement.Learned
	case "fixed":
	default:
		return policy, kit.Usage("fixed or learned", "--keep-alive %s", kit.Plain(o.keepAlive))
	}
	if o.prewarm != "on" && o.prewarm != "off" {
		return policy, kit.Usage("on or off", "--prewarm %s", kit.Plain(o.prewarm))
	}
	if o.budget <= 0 {
		return policy, kit.Usage("such as 1h; --prewarm off starts nothing ahead", "--prewarm-budget %v", o.budget)
	}
	if !knative.IsDomain(o.cluster) {
		return policy, kit.Usage("such as cluster.local, without dots around it", "--cluster-domain %q is no domain", kit.Plain(o.cluster))
	}
	return policy, nil
}

// foresee returns the forecaster. Without a data folder nothing is read or written:
// the root of the controller's pod is read-only.
func (o *controlling) foresee(log *slog.Logger) *orchestrator.Foresight {
	f := &orchestrator.Foresight{History: forecast.New(forecast.Options{})}
	if o.data != "" {
		f = orchestrator.OpenForesight(o.data, time.Now(), log)
	}
	f.StartAhead, f.Budget = o.prewarm == "on", o.budget
	return f
}

// run is the controller until ctx ends.
func (o *controlling) run(ctx context.Context, c *command) error {
	token, err := readToken(o.token)
	if err != nil {
		return err
	}
	logs, err := o.log.handler()
	if err != nil {
		return err
	}
	policy, err := o.policy()
	if err != nil {
		return err
	}
	cluster, err := knative.Open(o.access)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.addr)
	if err != nil {
		return &kit.Error{What: "cannot listen on " + o.addr, Err: err, Hint: "another address: --addr 127.0.0.1:8091"}
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if o.advertise == "" {
		o.advertise = net.JoinHostPort(cmp.Or(c.getenv("POD_IP"), "127.0.0.1"), port)
	}
	log := logs(c.Err)
	var foresee func() *orchestrator.Foresight
	if o.data != "" || o.prewarm == "on" || o.keepAlive == "learned" {
		foresee = func() *orchestrator.Foresight { return o.foresee(log) }
	}
	name := func(service string) string { return service + "." + o.namespace + ".svc." + o.cluster }
	return control.Run(ctx, control.Options{
		Config: cluster.Config(), Namespace: o.namespace, Name: o.id, Advertise: o.advertise, Listener: listener, Token: token, Secure: o.secure,
		Policy: policy, Public: name(o.public), Private: name(o.private), NewForesee: foresee, WebhookAddr: o.place, AnnotateNodes: o.near, EarlyDispatch: o.ahead, Knative: o.knative, Version: cli.Version, Log: log,
	})
}
