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
)

// revisionCatalog are the functions and teams of the cluster: steer's catalogue.
type revisionCatalog struct {
	pas              palisters.PodAutoscalerLister
	revs             servinglisters.RevisionLister
	services         servinglisters.ServiceLister
	cluster          *clusterState
	log              *slog.Logger
	changed          func() // something of it did
	revisionsChanged func() // which revisions there are has changed

	mu        sync.Mutex
	revisions map[functions.Name]*revision
	resources map[functions.Name]functions.Resources // what a pod of it takes, with what Knative adds
	teams     []*functions.Team
}

// readAll reads everything anew.
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

// updateRevision looks at one revision again.
func (b *revisionCatalog) updateRevision(namespace, name string) {
	key := functions.Name{Team: namespace, Name: name}
	pa, err := b.pas.PodAutoscalers(namespace).Get(name)
	if err != nil || !isOurClass(pa) || pa.DeletionTimestamp != nil {
		b.drop(key)
		return
	}
	rev, err := b.revs.Revisions(namespace).Get(name)
	if err != nil {
		return // it was made before its PodAutoscaler, so it is heard of in a moment
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

// setResources takes in what the pods of a revision take, as its Deployment has it: with
// Knative's proxy beside the engine.
func (b *revisionCatalog) setResources(key functions.Name, res functions.Resources) {
	b.mu.Lock()
	same := b.resources[key] == res
	b.resources[key] = res
	b.mu.Unlock()
	if !same {
		b.updateRevision(key.Team, key.Name)
	}
}

// dropResources takes in that a revision has no Deployment any more.
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
		b.log.Warn("a model does not read", "revision", key.String(), "problem", r.problem)
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

// updateService looks at the revisions of a Service again.
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

// get is one revision; nil where it is none of ours.
func (b *revisionCatalog) get(key functions.Name) *revision {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revisions[key]
}

// has reports whether a name is that of a revision of ours.
func (b *revisionCatalog) has(namespace, name string) bool {
	return b.get(functions.Name{Team: namespace, Name: name}) != nil
}

// serviceOf is the Service that a revision is of.
func (b *revisionCatalog) serviceOf(key functions.Name) string {
	if r := b.get(key); r != nil {
		return r.service
	}
	return ""
}

// serviceAndKind is who a revision is to its clients, and whether it runs no engine of ours.
func (b *revisionCatalog) serviceAndKind(key functions.Name) (service string, plain bool) {
	r := b.get(key)
	return b.serviceOf(key), r != nil && !r.shim
}

// revisionsOf are the revisions of a Service, the newest last.
func (b *revisionCatalog) revisionsOf(service functions.Name) []functions.Name {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []functions.Name
	for key, r := range b.revisions {
		if key.Team == service.Team && r.service == service.Name {
			out = append(out, key)
		}
	}
	// Revisions are numbered, and a number of more digits is a later one.
	slices.SortFunc(out, func(a, c functions.Name) int {
		if len(a.Name) != len(c.Name) {
			return len(a.Name) - len(c.Name)
		}
		return strings.Compare(a.Name, c.Name)
	})
	return out
}

// setTeams takes over the teams.
func (b *revisionCatalog) setTeams(teams []*functions.Team) {
	b.mu.Lock()
	same := slices.EqualFunc(b.teams, teams, func(x, y *functions.Team) bool { return fmt.Sprint(*x) == fmt.Sprint(*y) })
	b.teams = teams
	b.mu.Unlock()
	if !same {
		b.changed()
	}
}

// Models is steer's: each revision is a function.
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

// Teams is steer's.
func (b *revisionCatalog) Teams() []*functions.Team {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.teams)
}
