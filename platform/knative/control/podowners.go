package control

import (
	"context"
	"log/slog"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// allowAnnotation on a namespace lists prefixes of the sources from which its pods may
// stage weights; without it, all sources of the loaders.
const allowAnnotation = "thaw.dev/allow-source"

const (
	maxAllow     = 64  // prefixes per namespace
	maxAllowed   = 512 // bytes per prefix
	ownersResend = 10 * time.Second
)

// podOwners sends each node's loader the namespaces of its pods and the sources each team
// may stage from: the namespace's annotation thaw.dev/allow-source, which a team cannot
// write. While no namespace has one, only that is sent.
type podOwners struct {
	namespaces corelisters.NamespaceLister
	pods       corelisters.PodLister
	informers  []cache.SharedIndexInformer // of namespaces and pods
	send       func(node string, d controlstream.Update) bool
	log        *slog.Logger
	wakeup     newest.Signal
	conns      chan connEvent // connects and disconnects of loaders

	sent map[string]*controlstream.Owners // by node with a connected loader; nil: nothing sent
}

// connEvent is a loader's connect or disconnect.
type connEvent struct {
	node      string
	connected bool
}

func newPodOwners(c *control, tell func(string, controlstream.Update) bool, log *slog.Logger) *podOwners {
	core := c.core.Core().V1()
	return &podOwners{
		namespaces: core.Namespaces().Lister(), pods: core.Pods().Lister(),
		informers: []cache.SharedIndexInformer{core.Namespaces().Informer(), core.Pods().Informer()},
		send:      tell, log: log, wakeup: newest.NewSignal(), conns: make(chan connEvent, 4096), sent: map[string]*controlstream.Owners{},
	}
}

// loaderChanged records that a node's loader connected or disconnected.
func (o *podOwners) loaderChanged(node string, in bool) {
	select {
	case o.conns <- connEvent{node, in}:
	default:
		o.log.Error("a loader misses the owners of its pods: too many connect at once", "node", node)
	}
}

func (o *podOwners) Run(ctx context.Context) error {
	changed := func(any) { o.wakeup.Set() }
	for _, i := range o.informers {
		h, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(was, is any) {
			if p, ok := is.(*corev1.Pod); ok && p.Spec.NodeName == was.(*corev1.Pod).Spec.NodeName {
				return // neither namespace nor node changed
			}
			changed(is)
		}})
		if err != nil {
			return err
		}
		defer i.RemoveEventHandler(h)
	}
	// Resends what was lost with a broken connection.
	again := time.NewTicker(ownersResend)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-o.conns:
			if delete(o.sent, d.node); d.connected {
				o.sent[d.node] = nil
			}
		case <-o.wakeup:
		case <-again.C:
		}
		o.sendChanged()
		backoff.Sleep(ctx, 20*time.Millisecond) // pods are created in bursts, and no shim connects within this time
	}
}

// sendChanged sends to the loaders whose list changed.
func (o *podOwners) sendChanged() {
	allow, err := o.allowed()
	if err != nil {
		return
	}
	by := map[string]map[string]string{}
	if len(allow) > 0 {
		pods, err := o.pods.List(labels.Everything())
		if err != nil {
			return
		}
		for _, p := range pods {
			if p.Spec.NodeName == "" {
				continue
			}
			if by[p.Spec.NodeName] == nil {
				by[p.Spec.NodeName] = map[string]string{}
			}
			by[p.Spec.NodeName][string(p.UID)] = p.Namespace
		}
	}
	for node, was := range o.sent {
		x := &controlstream.Owners{Said: true, Allow: allow, Pods: by[node]}
		if !reflect.DeepEqual(was, x) && o.send(node, controlstream.Update{Owners: x}) {
			o.sent[node] = x
		}
	}
}

// allowed lists the allowed prefixes of the namespaces that have the annotation.
func (o *podOwners) allowed() (map[string][]string, error) {
	spaces, err := o.namespaces.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	allow := map[string][]string{}
	for _, ns := range spaces {
		if text, set := ns.Annotations[allowAnnotation]; set {
			allow[ns.Name] = allowList(text)
		}
	}
	return allow, nil
}

// allowList parses the annotation: source prefixes such as az://acct/models, separated by
// blanks or commas. Invalid prefixes are dropped; a list without a valid one allows
// nothing.
func allowList(text string) []string {
	list := []string{}
	if len(text) > maxAllow*(maxAllowed+2) {
		return list
	}
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		if scheme, rest, ok := strings.Cut(s, "://"); ok && scheme != "" && rest != "" && len(s) <= maxAllowed && len(list) < maxAllow {
			list = append(list, s)
		}
	}
	return list
}
