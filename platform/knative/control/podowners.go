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

	"github.com/thaw-dev/thaw/platform/controlstream"
)

// allowAnnotation on a namespace names the beginnings of the sources from where its
// pods may have weights staged; without it all that the loaders may.
const allowAnnotation = "thaw.dev/allow-source"

const (
	maxAllow     = 64  // sources of a namespace's list
	maxAllowed   = 512 // bytes of each
	ownersResend = 10 * time.Second
)

// podOwners tells each node's loader whose its pods are, and from where each team may
// have weights staged: the annotation thaw.dev/allow-source of the namespace, which a
// team cannot write. While no namespace has one nothing is told but that.
type podOwners struct {
	namespaces corelisters.NamespaceLister
	pods       corelisters.PodLister
	informers  []cache.SharedIndexInformer // of the two
	send       func(node string, d controlstream.Update) bool
	log        *slog.Logger
	wakeup     chan struct{}  // capacity 1
	conns      chan connEvent // loaders that come and go

	sent map[string]*controlstream.Owners // by node whose loader is there; nil: nothing yet
}

// connEvent is a loader that comes, and knows nothing, or goes.
type connEvent struct {
	node      string
	connected bool
}

func newPodOwners(c *control, tell func(string, controlstream.Update) bool, log *slog.Logger) *podOwners {
	core := c.core.Core().V1()
	return &podOwners{
		namespaces: core.Namespaces().Lister(), pods: core.Pods().Lister(),
		informers: []cache.SharedIndexInformer{core.Namespaces().Informer(), core.Pods().Informer()},
		send:      tell, log: log, wakeup: make(chan struct{}, 1), conns: make(chan connEvent, 4096), sent: map[string]*controlstream.Owners{},
	}
}

// loaderChanged takes in that a node's loader comes or goes.
func (o *podOwners) loaderChanged(node string, in bool) {
	select {
	case o.conns <- connEvent{node, in}:
	default:
		o.log.Error("a loader is not told whose its pods are: too many come and go", "node", node)
	}
}

// Run tells until ctx ends.
func (o *podOwners) Run(ctx context.Context) error {
	changed := func(any) {
		select {
		case o.wakeup <- struct{}{}:
		default:
		}
	}
	for _, i := range o.informers {
		h, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(was, is any) {
			if p, ok := is.(*corev1.Pod); ok && p.Spec.NodeName == was.(*corev1.Pod).Spec.NodeName {
				return // whose it is and where has not changed
			}
			changed(is)
		}})
		if err != nil {
			return err
		}
		defer i.RemoveEventHandler(h)
	}
	// What was told to a loader whose connection broke then is told again.
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
		select { // pods come in crowds, and none dials within this
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sendChanged tells those of whom it has changed.
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

// allowed are the lists of the namespaces that have one.
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

// allowList reads the annotation: beginnings of sources, such as az://acct/models,
// with blanks or commas between. What is none allows nothing; a list of none of them
// nothing at all.
func allowList(text string) []string {
	list := []string{}
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		if scheme, rest, ok := strings.Cut(s, "://"); ok && scheme != "" && rest != "" && len(s) <= maxAllowed && len(list) < maxAllow {
			list = append(list, s)
		}
	}
	return list
}
