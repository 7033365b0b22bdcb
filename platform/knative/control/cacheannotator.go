package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/knative"
)

const (
	annotateEvery     = 3 * time.Second // between two writes to one node, at least
	annotateAtOnce    = 50              // nodes that are written to in that time: a cluster that has just begun is told little by little
	annotatedModels   = 64              // that are named on a node; of more their number is said
	absentLoaderGrace = time.Minute     // for which a node without a loader keeps what was written
)

// cacheAnnotator writes on each node, as the annotation thaw.dev/cached-models, which models' bytes are
// there: what kubectl shows of a node, and what others that place pods can go by.
// Thaw itself goes by what loaders say.
type cacheAnnotator struct {
	kube   kubernetes.Interface
	nodes  corelisters.NodeLister
	models func() []modelSource
	stores func() map[string]storeReport
	log    *slog.Logger

	absentSince map[string]time.Time // nodes whose loader is away, since when
	pausedUntil time.Time            // until when nothing more is tried: it was refused
}

// modelSource is a model, and where its bytes come from.
type modelSource struct {
	model, source string
	revision      functions.Name
}

// storeReport is what the loader of a node says of its store.
type storeReport struct {
	connected bool
	cached    []functions.CachedModel
	ready     []functions.Name // revisions that serve there: their bytes are, also where the store lists them under another source
}

// Run writes until ctx ends.
func (n *cacheAnnotator) Run(ctx context.Context) error {
	t := time.NewTicker(annotateEvery)
	defer t.Stop()
	n.absentSince = map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			n.annotate(ctx, now)
		}
	}
}

// annotate writes to the nodes that say something else than what is.
func (n *cacheAnnotator) annotate(ctx context.Context, now time.Time) {
	if now.Before(n.pausedUntil) {
		return
	}
	nodes, err := n.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	stores, models := n.stores(), n.models()
	by := bySource(models)
	there, written := make(map[string]bool, len(nodes)), 0
	for _, k := range nodes {
		there[k.Name] = true
		s := stores[k.Name]
		text := s.annotation(by, models)
		if !s.connected {
			since, known := n.absentSince[k.Name]
			if !known {
				since = now
				n.absentSince[k.Name] = now
			}
			if now.Sub(since) < absentLoaderGrace {
				continue // it is started anew, or has not come yet; its disk has what it had
			}
			text = ""
		} else {
			delete(n.absentSince, k.Name)
		}
		if k.Annotations[knative.CachedModelsAnnotation] == text {
			continue
		}
		if written++; written > annotateAtOnce || !n.write(ctx, k.Name, text, now) {
			break
		}
	}
	for name := range n.absentSince {
		if !there[name] {
			delete(n.absentSince, name)
		}
	}
}

// write reports whether the next node may be written to.
func (n *cacheAnnotator) write(ctx context.Context, node, text string, now time.Time) bool {
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
	_, err = n.kube.CoreV1().Nodes().Patch(within, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "thaw"})
	switch {
	case err == nil || status.IsNotFound(err) || ctx.Err() != nil:
		return ctx.Err() == nil
	case status.IsForbidden(err) || status.IsInvalid(err):
		n.log.Warn("which models are near is not written on nodes: it is refused; trying again in ten minutes", "node", node, "error", err)
		n.pausedUntil = now.Add(10 * time.Minute)
	default:
		n.log.Debug("which models are near is not written on a node", "node", node, "error", err)
	}
	return false
}

// bySource are the models of each source.
func bySource(models []modelSource) api.Sources {
	by := api.Sources{}
	for _, m := range models {
		by.Add(m.model, m.source, "")
	}
	return by
}

// annotation is the annotation: NAMESPACE/MODEL=memory or =disk, with a comma between,
// in the order of names; "" where there is none.
func (h storeReport) annotation(by api.Sources, models []modelSource) string {
	var serving []string
	if len(h.ready) > 0 {
		for _, m := range models {
			if slices.Contains(h.ready, m.revision) {
				serving = append(serving, m.model)
			}
		}
	}
	var list []string
	for _, n := range by.Near(h.cached, serving) {
		list = append(list, n.Model+"="+n.Where())
	}
	if more := len(list) - annotatedModels; more > 0 {
		list = append(list[:annotatedModels], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ",")
}

// Stores is what the loaders say of the nodes' stores.
func (f *clusterState) Stores() map[string]storeReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]storeReport, len(f.nodes))
	for name, n := range f.nodes {
		if n.reported != nil {
			out[name] = storeReport{connected: n.connected, cached: n.reported.Cached}
		}
	}
	for _, p := range f.pods {
		if h, ok := out[p.node]; ok && p.rev != nil && p.reported != nil && p.reported.State == functions.Ready && !p.terminating && !p.ended {
			h.ready = append(h.ready, p.rev.name)
			out[p.node] = h
		}
	}
	return out
}

// ModelSources are the models of the cluster by their clients' names, and their sources.
func (b *revisionCatalog) ModelSources() []modelSource {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]modelSource, 0, len(b.revisions))
	for key, r := range b.revisions {
		if r.model.Spec.Source == "" {
			continue
		}
		name := r.service
		if name == "" {
			name = key.Name
		}
		out = append(out, modelSource{key.Team + "/" + name, r.model.Spec.Source, key})
	}
	return out
}
