package team

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/controller"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

type WatcherOptions struct {
	Client     kubernetes.Interface
	Namespaces corelisters.NamespaceLister
	Quotas     corelisters.ResourceQuotaLister
	Transform  cache.TransformFunc // of the Secrets that hold keys, before they are cached
	Tokens     func() []string     // that open the control API
	Apply      func(controlstream.Keys)
	Events     record.EventRecorder
	Log        *slog.Logger
}

// Watcher reads namespaces as teams, with their quotas and keys, and passes them to
// WatcherOptions.Apply.
type Watcher struct {
	o         WatcherOptions
	factory   informers.SharedInformerFactory // only the Secrets that hold keys
	secrets   corelisters.SecretLister
	keys      *auth.KeyStore
	wakeup    newest.Signal
	firstSent chan struct{}     // closed after Apply was called once
	reported  map[string]string // problems already logged, by namespace; Run's
}

// NewWatcher starts nothing. Until the keys are listed, its KeyStore accepts tokens only.
func NewWatcher(o WatcherOptions) *Watcher {
	w := &Watcher{
		o: o, keys: auth.NewReplicatedKeyStore(), wakeup: newest.NewSignal(), firstSent: make(chan struct{}),
		reported: map[string]string{},
	}
	w.keys.Trust(o.Tokens()...)
	// The controller may read Secrets of this one name only.
	w.factory = informers.NewSharedInformerFactoryWithOptions(o.Client, 0, informers.WithTransform(o.Transform),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector("metadata.name", SecretName).String()
		}))
	w.secrets = w.factory.Core().V1().Secrets().Lister()
	return w
}

// KeyStore holds the keys of all teams, and the tokens.
func (w *Watcher) KeyStore() *auth.KeyStore { return w.keys }

// Applied is closed after the first call of WatcherOptions.Apply.
func (w *Watcher) Applied() <-chan struct{} { return w.firstSent }

// Changed schedules a new reading.
func (w *Watcher) Changed() { w.wakeup.Set() }

// Run reads and sends until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	informer := w.factory.Core().V1().Secrets().Informer()
	if _, err := informer.AddEventHandler(controller.HandleAll(func(any) { w.Changed() })); err != nil {
		return err
	}
	w.factory.Start(ctx.Done())
	defer w.factory.Shutdown()
	// Until the keys are listed, no key is accepted.
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	w.Changed()
	var first sync.Once
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wakeup:
		}
		w.read()
		first.Do(func() { close(w.firstSent) })
		backoff.Sleep(ctx, 20*time.Millisecond) // namespaces are created in bursts
	}
}

// read reads all teams and keys and passes them on.
func (w *Watcher) read() {
	spaces, err := w.o.Namespaces.List(labels.Everything())
	if err != nil {
		return
	}
	all, err := w.o.Quotas.List(labels.Everything())
	if err != nil {
		return
	}
	of := map[string][]*corev1.ResourceQuota{}
	for _, q := range all {
		of[q.Namespace] = append(of[q.Namespace], q)
	}
	slices.SortFunc(spaces, func(a, b *corev1.Namespace) int { return strings.Compare(a.Name, b.Name) })
	keys := controlstream.Keys{}
	for _, ns := range spaces {
		if !IsTeam(ns.Name) {
			continue
		}
		x, problems := FromNamespace(ns, of[ns.Name])
		w.reportProblems(ns.Name, problems)
		keys.Teams = append(keys.Teams, x)
	}
	secrets, err := w.secrets.List(labels.Everything())
	if err != nil {
		return
	}
	slices.SortFunc(secrets, func(a, b *corev1.Secret) int { return strings.Compare(a.Namespace, b.Namespace) })
	found, problems := Keys(secrets)
	w.reportProblems("", problems)
	keys.Keys = found.Keys
	w.keys.Trust(w.o.Tokens()...)
	if err := w.keys.Set(keys.Keys); err != nil {
		w.reportProblems(" ", []string{err.Error()})
	}
	w.o.Apply(keys)
}

// reportProblems logs the problems of a namespace when they change.
func (w *Watcher) reportProblems(of string, problems []string) {
	text := strings.Join(problems, "; ")
	if w.reported[of] == text {
		return
	}
	w.reported[of] = text
	if text != "" {
		w.o.Log.Warn("cannot read the settings of a team", "namespace", of, "problems", text)
	}
	if of = strings.TrimSpace(of); text == "" || of == "" {
		return
	}
	w.o.Events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: of, Namespace: of}, corev1.EventTypeWarning,
		"BadSettings", functions.Shorten(text, maxEventMessage))
}

// maxEventMessage bounds an Event's message; Kubernetes refuses more than 1,024 bytes.
const maxEventMessage = 500
