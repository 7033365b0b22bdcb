package control

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

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// teamWatcher reads namespaces as teams, with their quotas and keys, and passes them to
// the orchestrator and the activators.
type teamWatcher struct {
	namespaces corelisters.NamespaceLister
	quotas     corelisters.ResourceQuotaLister
	factory    informers.SharedInformerFactory // only the Secrets that hold keys
	secrets    corelisters.SecretLister
	sendKeys   func(controlstream.Keys)
	setLimits  func([]functions.Team)
	tokens     func() []string // that open the control API
	catalog    *revisionCatalog
	keys       *auth.KeyStore // of the control API
	log        *slog.Logger
	wakeup     chan struct{}
	firstSent  chan struct{}     // closed after the keys were sent once
	reported   map[string]string // problems already logged, by namespace
	kube       kubernetes.Interface
	events     chan *corev1.Event // to be created

	mu sync.Mutex
}

func newTeamWatcher(c *control, r *leaderTerm) *teamWatcher {
	t := &teamWatcher{
		namespaces: c.core.Core().V1().Namespaces().Lister(), quotas: c.core.Core().V1().ResourceQuotas().Lister(),
		sendKeys: r.hub.SetKeys, setLimits: r.limits.setTeams, catalog: r.catalog, keys: auth.NewReplicatedKeyStore(), log: c.o.Log, wakeup: make(chan struct{}, 1), firstSent: make(chan struct{}), reported: map[string]string{},
		kube: c.kube, events: make(chan *corev1.Event, 64),
	}
	t.tokens = c.tokens
	t.keys.Trust(t.tokens()...)
	// The controller may read Secrets of this one name only.
	t.factory = informers.NewSharedInformerFactoryWithOptions(c.kube, 0, informers.WithTransform(slimObject), informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector("metadata.name", team.SecretName).String()
	}))
	t.secrets = t.factory.Core().V1().Secrets().Lister()
	return t
}

// changed schedules a new reading.
func (t *teamWatcher) changed() {
	select {
	case t.wakeup <- struct{}{}:
	default:
	}
}

// Run reads and sends until ctx ends.
func (t *teamWatcher) Run(ctx context.Context) error {
	informer := t.factory.Core().V1().Secrets().Informer()
	ring := func(any) { t.changed() }
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: ring, UpdateFunc: func(_, o any) { ring(o) }, DeleteFunc: ring}); err != nil {
		return err
	}
	t.factory.Start(ctx.Done())
	defer t.factory.Shutdown()
	var telling sync.WaitGroup
	defer telling.Wait()
	telling.Go(func() { t.sendEvents(ctx) })
	// Until the keys are listed, no key is accepted.
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	t.changed()
	var first sync.Once
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.wakeup:
		}
		t.read()
		first.Do(func() { close(t.firstSent) })
		// namespaces are created in bursts
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// read reads all teams and keys and passes them on.
func (t *teamWatcher) read() {
	spaces, err := t.namespaces.List(labels.Everything())
	if err != nil {
		return
	}
	all, err := t.quotas.List(labels.Everything())
	if err != nil {
		return
	}
	of := map[string][]*corev1.ResourceQuota{}
	for _, q := range all {
		of[q.Namespace] = append(of[q.Namespace], q)
	}
	slices.SortFunc(spaces, func(a, b *corev1.Namespace) int { return strings.Compare(a.Name, b.Name) })
	var list []*functions.Team
	keys := controlstream.Keys{}
	for _, ns := range spaces {
		if !team.IsTeam(ns.Name) {
			continue
		}
		x, problems := team.FromNamespace(ns, of[ns.Name])
		t.reportProblems(ns.Name, problems)
		list = append(list, &x)
		keys.Teams = append(keys.Teams, x)
	}
	secrets, err := t.secrets.List(labels.Everything())
	if err != nil {
		return
	}
	slices.SortFunc(secrets, func(a, b *corev1.Secret) int { return strings.Compare(a.Namespace, b.Namespace) })
	found, problems := team.Keys(secrets)
	t.reportProblems("", problems)
	keys.Keys = found.Keys
	fed := make([]auth.ReplicatedKey, 0, len(keys.Keys))
	for _, k := range keys.Keys {
		fed = append(fed, auth.ReplicatedKey{Key: auth.Key{ID: k.ID, Name: k.Name, Team: k.Team, Admin: k.Admin}, Hash: k.Hash})
	}
	t.keys.Trust(t.tokens()...)
	if err := t.keys.Set(fed); err != nil {
		t.reportProblems(" ", []string{err.Error()})
	}
	t.catalog.setTeams(list)
	t.setLimits(keys.Teams)
	t.sendKeys(keys)
}

// reportProblems logs the problems of a namespace when they change.
func (t *teamWatcher) reportProblems(of string, problems []string) {
	text := strings.Join(problems, "; ")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reported[of] == text {
		return
	}
	t.reported[of] = text
	if text != "" {
		t.log.Warn("cannot read the settings of a team", "namespace", of, "problems", text)
	}
	if of = strings.TrimSpace(of); text == "" || of == "" {
		return
	}
	select {
	case t.events <- settingsEvent(of, text):
	default: // it is in the log
	}
}

// settingsEvent is an Event in a team's namespace about settings that could not be read.
func settingsEvent(namespace, text string) *corev1.Event {
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "thaw-team-", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: namespace, Namespace: namespace},
		Type:           corev1.EventTypeWarning, Reason: "BadSettings", Message: lastLine(text),
		Source: corev1.EventSource{Component: "thaw"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// sendEvents creates Events until ctx ends. A refused one is only logged.
func (t *teamWatcher) sendEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-t.events:
			within, cancel := context.WithTimeout(ctx, 10*time.Second)
			if _, err := t.kube.CoreV1().Events(e.Namespace).Create(within, e, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
				t.log.Warn("cannot create an Event", "namespace", e.Namespace, "error", err)
			}
			cancel()
		}
	}
}
