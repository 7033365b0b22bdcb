package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/control"
	"github.com/thaw-dev/thaw/platform/memlimit"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

type controllerSettings struct {
	Addr             string `json:"addr" default:":8090" help:"where activators, loaders and the control API come in"`
	Advertise        string `json:"advertise" help:"HOST:PORT at which they reach this controller" shown:"POD_IP and the port of --addr"`
	WebhookAddr      string `json:"webhook-addr" help:"address of the webhook thaw-scheduler-hint, which API servers ask for the node of a new pod, such as :8443; empty: no webhook"`
	Namespace        string `json:"namespace" default:"thaw-system" env:"POD_NAMESPACE" help:"namespace of thaw itself"`
	KnativeNamespace string `json:"knative-namespace" default:"knative-serving" help:"namespace of Knative Serving; its activators' metrics count the requests of other ingresses"`
	ID               string `json:"id" env:"POD_NAME" help:"name of this controller" shown:"the host's name"`
	TokenFile        string `json:"token-file" help:"file with the token of the control stream"`
	Secure           bool   `json:"secure" default:"false" help:"accept control streams with certificates only, those of the Secret thaw-control-tls, which is read and renewed while this runs"`
	EarlyDispatch    bool   `json:"early-dispatch" default:"true" help:"send the first queued requests to the starting pod, which passes them on the moment its engine is ready; else activators send them once they know"`
	PublicService    string `json:"public-service" default:"thaw" help:"Service for clients outside the cluster"`
	PrivateService   string `json:"private-service" default:"thaw-local" help:"Service for clients inside the cluster"`
	Data             string `json:"data" help:"folder in which history outlives this process; empty keeps it in memory"`
	sharedController
	kit.LogSettings `defaults:"log-format=json"`
	access          knative.Access
}

// sharedController are the settings of a controller that install also has and passes on.
type sharedController struct {
	ClusterDomain string `json:"cluster-domain" default:"cluster.local" help:"DNS domain of the cluster"`
	cli.PolicySettings
}

func (c *sharedController) check() error {
	if !knative.IsDomain(c.ClusterDomain) {
		return fmt.Errorf("cluster-domain: %q is no domain: such as cluster.local, without dots around it", kit.Plain(c.ClusterDomain))
	}
	return c.PolicySettings.Check()
}

func (c *command) controllerPart() *kit.Command {
	o := new(controllerSettings)
	cmd := c.partCommand("controller", "Decide which models run on which nodes",
		`  thaw-knative controller --token-file /run/thaw/token
  thaw-knative controller --addr 127.0.0.1:8090 --advertise 127.0.0.1:8090 --token-file token --kubeconfig ~/.kube/config --log-format text`,
		o, o.check, func(ctx context.Context) error { return o.run(ctx, c) })
	cmd.Flags().StringVar(&o.access.Kubeconfig, "kubeconfig", "", "file that leads to the cluster [KUBECONFIG, or the pod's own account]")
	cmd.Flags().StringVar(&o.access.Context, "context", "", "context of it")
	return cmd
}

func (s *controllerSettings) check() error {
	defaultID(&s.ID)
	if s.TokenFile == "" {
		return errNoToken
	}
	if s.Advertise != "" {
		at, ok := bracketHost(s.Advertise)
		if !ok {
			return kit.Usage("--advertise 10.0.0.7:8090, or --advertise [fd00::7]:8090",
				"--advertise %q is no HOST:PORT", functions.Clip(s.Advertise))
		}
		s.Advertise = at
	}
	return s.sharedController.check()
}

// bracketHost returns HOST:PORT with brackets around an IPv6 address that has none, as
// $(POD_IP):8090 in a manifest gives it.
func bracketHost(at string) (string, bool) {
	if _, _, err := net.SplitHostPort(at); err == nil {
		return at, true
	}
	i := max(strings.LastIndex(at, ":"), 0)
	if net.ParseIP(at[:i]) == nil {
		return "", false
	}
	return net.JoinHostPort(at[:i], at[i+1:]), true
}

// foresee returns the forecaster. Without a data folder nothing is read or written:
// the root of the controller's pod is read-only.
func (s *controllerSettings) foresee(log *slog.Logger) *foresight.Options {
	f := &foresight.Options{History: forecast.New(forecast.Options{})}
	if s.Data != "" {
		f = foresight.Open(s.Data, time.Now(), log)
	}
	f.StartAhead, f.Budget = s.Prewarm == "on", s.PrewarmBudget.Std()
	return f
}

// run is the controller until ctx ends.
func (s *controllerSettings) run(ctx context.Context, c *command) error {
	log := s.Open(c.Err)
	defer log.Close()
	klog.SetSlogLogger(log.Logger) // of the Kubernetes client, which else writes to stderr and waits for it
	token, err := kit.ReadToken(s.TokenFile)
	if err != nil {
		return err
	}
	cluster, err := knative.Open(s.access)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return &kit.Error{What: "cannot listen on " + s.Addr, Err: err, Hint: "another address: --addr 127.0.0.1:8091"}
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	s.Advertise = cmp.Or(s.Advertise, net.JoinHostPort(cmp.Or(c.getenv("POD_IP"), "127.0.0.1"), port))
	memlimit.Apply(memlimit.Alone, log.Logger)
	foresee := func() *foresight.Options { return s.foresee(log.Logger) }
	name := func(service string) string { return service + "." + s.Namespace + ".svc." + s.ClusterDomain }
	return control.Run(ctx, control.Options{
		Config: cluster.Config(), Namespace: s.Namespace, Name: s.ID, Advertise: s.Advertise, Listener: listener, Token: token, Secure: s.Secure,
		Policy: s.Policy(), Public: name(s.PublicService), Private: name(s.PrivateService), NewForesee: foresee, WebhookAddr: s.WebhookAddr, EarlyDispatch: s.EarlyDispatch, Knative: s.KnativeNamespace, Version: cli.Version, Log: log.Logger, Samples: []telemetry.Source{log.Samples},
	})
}
