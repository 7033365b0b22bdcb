package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
)

const (
	annotateEvery     = 3 * time.Second // between two rounds of writes
	annotateAtOnce    = 50              // nodes written per round, so a new cluster is annotated step by step
	annotatedModels   = 64              // named on a node; of further ones the number is written
	absentLoaderGrace = time.Minute     // how long a node without a loader keeps its annotation
)

// cacheAnnotator writes on each node which models' bytes it has, as the annotation
// thaw.dev/cached-models, for people and for other schedulers. Thaw itself uses the
// loaders' reports.
type cacheAnnotator struct {
	kube   kubernetes.Interface
	nodes  corelisters.NodeLister
	models func() []modelSource
	stores func() map[string]clusterstate.Store
	log    *slog.Logger

	absentSince map[string]time.Time // by node whose loader is away
	pausedUntil time.Time            // no writes until then: one was refused
}

// modelSource is a model and the source of its bytes.
type modelSource struct {
	model, source string
	revision      functions.Name
}

func (c *cacheAnnotator) Run(ctx context.Context) error {
	c.absentSince = map[string]time.Time{}
	for backoff.Sleep(ctx, annotateEvery) {
		c.annotate(ctx, time.Now())
	}
	return nil
}

// annotate writes the annotation of nodes on which it differs.
func (c *cacheAnnotator) annotate(ctx context.Context, now time.Time) {
	if now.Before(c.pausedUntil) {
		return
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	stores, models := c.stores(), c.models()
	by := bySource(models)
	there, written := make(map[string]bool, len(nodes)), 0
	for _, k := range nodes {
		there[k.Name] = true
		s := stores[k.Name]
		text := annotation(s, by, models)
		if !s.Connected {
			since, known := c.absentSince[k.Name]
			if !known {
				since = now
				c.absentSince[k.Name] = now
			}
			if now.Sub(since) < absentLoaderGrace {
				continue // its loader may restart; the disk keeps its contents
			}
			text = ""
		} else {
			delete(c.absentSince, k.Name)
		}
		if k.Annotations[knative.CachedModelsAnnotation] == text {
			continue
		}
		if written++; written > annotateAtOnce || !c.write(ctx, k.Name, text, now) {
			break
		}
	}
	maps.DeleteFunc(c.absentSince, func(name string, _ time.Time) bool { return !there[name] })
}

// write writes one annotation and reports whether the round may go on.
func (c *cacheAnnotator) write(ctx context.Context, node, text string, now time.Time) bool {
	var value any
	if text != "" {
		value = text
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{knative.CachedModelsAnnotation: value}}})
	if err != nil {
		return false
	}
	within, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = c.kube.CoreV1().Nodes().Patch(within, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "thaw"})
	switch {
	case err == nil || status.IsNotFound(err) || ctx.Err() != nil:
		return ctx.Err() == nil
	case status.IsForbidden(err) || status.IsInvalid(err):
		c.log.Warn("nodes cannot be annotated with cached models: refused; trying again in ten minutes", "node", node, "error", err)
		c.pausedUntil = now.Add(10 * time.Minute)
	default:
		c.log.Debug("cannot annotate a node with cached models", "node", node, "error", err)
	}
	return false
}

func bySource(models []modelSource) api.Sources {
	by := api.Sources{}
	for _, m := range models {
		by.Add(m.model, m.source, "")
	}
	return by
}

// annotation is the annotation's text: NAMESPACE/MODEL=memory or =disk, sorted, separated
// by commas; "" if the node has no model.
func annotation(r clusterstate.Store, by api.Sources, models []modelSource) string {
	var serving []string
	if len(r.Ready) > 0 {
		for _, m := range models {
			if slices.Contains(r.Ready, m.revision) {
				serving = append(serving, m.model)
			}
		}
	}
	list := functions.ConvertAll(by.CachedModels(r.Cached, serving), func(n api.NodeModel) string { return n.Model + "=" + n.TierWord() })
	if more := len(list) - annotatedModels; more > 0 {
		list = append(list[:annotatedModels], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ",")
}

// ModelSources lists the models by their public names, with their sources.
func (c *revisionCatalog) ModelSources() []modelSource {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]modelSource, 0, len(c.revisions))
	for key, r := range c.revisions {
		if r.model.Spec.Source == "" {
			continue
		}
		out = append(out, modelSource{key.Team + "/" + cmp.Or(r.service, key.Name), r.model.Spec.Source, key})
	}
	return out
}
