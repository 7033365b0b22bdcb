package control

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
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
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
)

// revisionCatalog holds the revisions and teams of the cluster; it is the orchestrator's
// catalog.
type revisionCatalog struct {
	pas              palisters.PodAutoscalerLister
	revs             servinglisters.RevisionLister
	services         servinglisters.ServiceLister
	cluster          *clusterstate.State
	log              *slog.Logger
	changed          func() // called after any change
	revisionsChanged func() // called when revisions are added or removed

	mu        sync.Mutex
	revisions map[functions.Name]*revision
	resources map[functions.Name]functions.Resources // requests of one pod, including Knative's proxy
	teams     []*functions.Team
}

func (c *revisionCatalog) readAll() error {
	list, err := c.pas.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, pa := range list {
		c.updateRevision(pa.Namespace, pa.Name)
	}
	return nil
}

// updateRevision reads one revision again. A revision that cannot be read stays as it was,
// with a problem.
func (c *revisionCatalog) updateRevision(namespace, name string) {
	key := functions.Name{Team: namespace, Name: name}
	err := knative.Protect(c.log, "revision "+key.String(), func() { c.readAgain(key) })
	if err == nil {
		return
	}
	r := revision{model: functions.NewModel()}
	r.model.Metadata = functions.Metadata{Name: name, Namespace: namespace}
	r.model.Spec.Engine = functions.EngineCommand
	if was := c.get(key); was != nil {
		r = *was
	}
	r.problem, r.unusable = err.Error(), true
	c.put(key, r)
}

// readAgain reads one revision from the listers.
func (c *revisionCatalog) readAgain(key functions.Name) {
	namespace, name := key.Team, key.Name
	pa, err := c.pas.PodAutoscalers(namespace).Get(name)
	if err != nil || !isOurClass(pa) || pa.DeletionTimestamp != nil {
		c.drop(key)
		return
	}
	rev, err := c.revs.Revisions(namespace).Get(name)
	if err != nil {
		return // created before its PodAutoscaler, so its event follows
	}
	var service *servingv1.Service
	if s := pa.Labels[serving.ServiceLabelKey]; s != "" {
		if service, err = c.services.Services(namespace).Get(s); err != nil {
			service = nil
		}
	}
	r := readRevision(pa, rev, service)
	c.mu.Lock()
	res, known := c.resources[key]
	c.mu.Unlock()
	if known {
		own := &r.model.Spec.Resources
		own.GPUs, own.Memory, own.CPU = res.GPUs, max(own.Memory, res.Memory), res.CPU
	}
	c.put(key, r)
}

// setResources records the requests of a revision's pods, from its Deployment.
func (c *revisionCatalog) setResources(key functions.Name, res functions.Resources) {
	c.mu.Lock()
	same := c.resources[key] == res
	c.resources[key] = res
	c.mu.Unlock()
	if !same {
		c.updateRevision(key.Team, key.Name)
	}
}

// dropResources records that a revision's Deployment is gone.
func (c *revisionCatalog) dropResources(key functions.Name) {
	c.mu.Lock()
	delete(c.resources, key)
	c.mu.Unlock()
}

func (c *revisionCatalog) put(key functions.Name, r revision) {
	c.mu.Lock()
	was := c.revisions[key]
	if reflect.DeepEqual(was, &r) {
		c.mu.Unlock()
		return
	}
	c.revisions[key] = &r
	c.mu.Unlock()
	if r.problem != "" {
		c.log.Warn("cannot read a model", "revision", key.String(), "problem", r.problem)
	}
	c.cluster.SetRevision(key, r.deployment, r.shim)
	c.cluster.Require(key, r.model.Spec.Pod)
	if was == nil {
		c.revisionsChanged()
	}
	c.changed()
}

func (c *revisionCatalog) drop(key functions.Name) {
	c.mu.Lock()
	_, known := c.revisions[key]
	delete(c.revisions, key)
	c.mu.Unlock()
	if known {
		c.cluster.DropRevision(key)
		c.revisionsChanged()
		c.changed()
	}
}

// updateService reads the revisions of a Service again.
func (c *revisionCatalog) updateService(namespace, name string) {
	for _, key := range c.revisionsOf(functions.Name{Team: namespace, Name: name}) {
		c.updateRevision(key.Team, key.Name)
	}
}

// get returns a revision; nil if it is not of class thaw.dev.
func (c *revisionCatalog) get(key functions.Name) *revision {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revisions[key]
}

// has reports whether the revision exists and is of class thaw.dev.
func (c *revisionCatalog) has(namespace, name string) bool {
	return c.get(functions.Name{Team: namespace, Name: name}) != nil
}

// serviceOf is the Service of a revision, and whether the revision runs without thaw's
// shim.
func (c *revisionCatalog) serviceOf(key functions.Name) (service string, plain bool) {
	if r := c.get(key); r != nil {
		return r.service, !r.shim
	}
	return "", false
}

// revisionsOf lists the revisions of a Service, the newest last.
func (c *revisionCatalog) revisionsOf(service functions.Name) []functions.Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []functions.Name
	for key, r := range c.revisions {
		if key.Team == service.Team && r.service == service.Name {
			out = append(out, key)
		}
	}
	// Revision names end in a number; a longer one is later.
	slices.SortFunc(out, func(a, b functions.Name) int {
		return cmp.Or(len(a.Name)-len(b.Name), strings.Compare(a.Name, b.Name))
	})
	return out
}

func (c *revisionCatalog) setTeams(teams []functions.Team) {
	next := functions.ConvertAll(teams, func(t functions.Team) *functions.Team { return &t })
	c.mu.Lock()
	same := slices.EqualFunc(c.teams, next, func(x, y *functions.Team) bool { return fmt.Sprint(*x) == fmt.Sprint(*y) })
	c.teams = next
	c.mu.Unlock()
	if !same {
		c.changed()
	}
}

// Models returns each revision as a function.
func (c *revisionCatalog) Models() []*functions.Model {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(c.revisions), func(a, b functions.Name) int { return strings.Compare(a.String(), b.String()) })
	return functions.ConvertAll(keys, func(key functions.Name) *functions.Model { return c.revisions[key].model })
}

func (c *revisionCatalog) Teams() []*functions.Team {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.teams)
}
