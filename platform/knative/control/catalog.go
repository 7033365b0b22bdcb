package control

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	palisters "knative.dev/serving/pkg/client/listers/autoscaling/v1alpha1"
	servinglisters "knative.dev/serving/pkg/client/listers/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
)

// revisionCatalog holds the revisions and teams of the cluster; it is the orchestrator's
// catalog.
type revisionCatalog struct {
	pas              palisters.PodAutoscalerLister
	revs             servinglisters.RevisionLister
	services         servinglisters.ServiceLister
	cluster          *clusterState
	log              *slog.Logger
	changed          func() // called after any change
	revisionsChanged func() // called when revisions are added or removed

	mu        sync.Mutex
	revisions map[functions.Name]*revision
	resources map[functions.Name]functions.Resources // requests of one pod, including Knative's proxy
	teams     []*functions.Team
}

// readAll reads all PodAutoscalers.
func (b *revisionCatalog) readAll() error {
	list, err := b.pas.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, pa := range list {
		b.updateRevision(pa.Namespace, pa.Name)
	}
	return nil
}

// updateRevision reads one revision again. A revision that cannot be read stays as it was,
// with a problem.
func (b *revisionCatalog) updateRevision(namespace, name string) {
	key := functions.Name{Team: namespace, Name: name}
	err := knative.Protect(b.log, "revision "+key.String(), func() { b.readAgain(key) })
	if err == nil {
		return
	}
	r := revision{model: functions.NewModel()}
	r.model.Metadata = functions.Metadata{Name: name, Namespace: namespace}
	r.model.Spec.Engine = functions.EngineCommand
	if was := b.get(key); was != nil {
		r = *was
	}
	r.problem, r.unusable = err.Error(), true
	b.put(key, r)
}

// readAgain reads one revision from the listers.
func (b *revisionCatalog) readAgain(key functions.Name) {
	namespace, name := key.Team, key.Name
	pa, err := b.pas.PodAutoscalers(namespace).Get(name)
	if err != nil || !isOurClass(pa) || pa.DeletionTimestamp != nil {
		b.drop(key)
		return
	}
	rev, err := b.revs.Revisions(namespace).Get(name)
	if err != nil {
		return // created before its PodAutoscaler, so its event follows
	}
	var service *servingv1.Service
	if s := pa.Labels[serving.ServiceLabelKey]; s != "" {
		if service, err = b.services.Services(namespace).Get(s); err != nil {
			service = nil
		}
	}
	r := readRevision(pa, rev, service)
	b.mu.Lock()
	res, known := b.resources[key]
	b.mu.Unlock()
	if known {
		own := &r.model.Spec.Resources
		own.GPUs, own.Memory, own.CPU = res.GPUs, max(own.Memory, res.Memory), res.CPU
	}
	b.put(key, r)
}

// setResources records the requests of a revision's pods, from its Deployment.
func (b *revisionCatalog) setResources(key functions.Name, res functions.Resources) {
	b.mu.Lock()
	same := b.resources[key] == res
	b.resources[key] = res
	b.mu.Unlock()
	if !same {
		b.updateRevision(key.Team, key.Name)
	}
}

// dropResources records that a revision's Deployment is gone.
func (b *revisionCatalog) dropResources(key functions.Name) {
	b.mu.Lock()
	delete(b.resources, key)
	b.mu.Unlock()
}

func (b *revisionCatalog) put(key functions.Name, r revision) {
	b.mu.Lock()
	was := b.revisions[key]
	if was != nil && was.equal(&r) {
		b.mu.Unlock()
		return
	}
	b.revisions[key] = &r
	b.mu.Unlock()
	if r.problem != "" {
		b.log.Warn("cannot read a model", "revision", key.String(), "problem", r.problem)
	}
	b.cluster.SetRevision(key, r.deployment, r.shim)
	b.cluster.Require(key, r.model.Spec.Pod)
	if was == nil {
		b.revisionsChanged()
	}
	b.changed()
}

func (b *revisionCatalog) drop(key functions.Name) {
	b.mu.Lock()
	_, known := b.revisions[key]
	delete(b.revisions, key)
	b.mu.Unlock()
	if known {
		b.cluster.DropRevision(key)
		b.revisionsChanged()
		b.changed()
	}
}

// updateService reads the revisions of a Service again.
func (b *revisionCatalog) updateService(namespace, name string) {
	b.mu.Lock()
	var of []functions.Name
	for key, r := range b.revisions {
		if key.Team == namespace && r.service == name {
			of = append(of, key)
		}
	}
	b.mu.Unlock()
	for _, key := range of {
		b.updateRevision(key.Team, key.Name)
	}
}

// get returns a revision; nil if it is not of class thaw.dev.
func (b *revisionCatalog) get(key functions.Name) *revision {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revisions[key]
}

// has reports whether the revision exists and is of class thaw.dev.
func (b *revisionCatalog) has(namespace, name string) bool {
	return b.get(functions.Name{Team: namespace, Name: name}) != nil
}

// serviceOf is the Knative Service of a revision.
func (b *revisionCatalog) serviceOf(key functions.Name) string {
	if r := b.get(key); r != nil {
		return r.service
	}
	return ""
}

// serviceAndKind is the public name of a revision, and whether it runs without thaw's
// shim.
func (b *revisionCatalog) serviceAndKind(key functions.Name) (service string, plain bool) {
	r := b.get(key)
	return b.serviceOf(key), r != nil && !r.shim
}

// revisionsOf lists the revisions of a Service, the newest last.
func (b *revisionCatalog) revisionsOf(service functions.Name) []functions.Name {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []functions.Name
	for key, r := range b.revisions {
		if key.Team == service.Team && r.service == service.Name {
			out = append(out, key)
		}
	}
	// Revision names end in a number; a longer one is later.
	slices.SortFunc(out, func(a, c functions.Name) int {
		if len(a.Name) != len(c.Name) {
			return len(a.Name) - len(c.Name)
		}
		return strings.Compare(a.Name, c.Name)
	})
	return out
}

// setTeams replaces the teams.
func (b *revisionCatalog) setTeams(teams []functions.Team) {
	next := make([]*functions.Team, len(teams))
	for i := range teams {
		next[i] = new(teams[i])
	}
	b.mu.Lock()
	same := slices.EqualFunc(b.teams, next, func(x, y *functions.Team) bool { return fmt.Sprint(*x) == fmt.Sprint(*y) })
	b.teams = next
	b.mu.Unlock()
	if !same {
		b.changed()
	}
}

// Models returns each revision as a function.
func (b *revisionCatalog) Models() []*functions.Model {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*functions.Model, 0, len(b.revisions))
	for _, key := range slices.SortedFunc(maps.Keys(b.revisions), func(a, c functions.Name) int {
		return strings.Compare(a.String(), c.String())
	}) {
		out = append(out, b.revisions[key].model)
	}
	return out
}

// Teams returns the teams.
func (b *revisionCatalog) Teams() []*functions.Team {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.teams)
}
