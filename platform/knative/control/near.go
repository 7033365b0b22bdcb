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
	nearEvery  = 3 * time.Second // between two writes to one node, at least
	nearAtOnce = 50              // nodes that are written to in that time: a cluster that has just begun is told little by little
	nearModels = 64              // that are named on a node; of more their number is said
	nearAlone  = time.Minute     // for which a node without a loader keeps what was written
)

// near writes on each node, as the annotation thaw.dev/near, which models' bytes are
// there: what kubectl shows of a node, and what others that place pods can go by.
// Thaw itself goes by what loaders say.
type near struct {
	kube   kubernetes.Interface
	nodes  corelisters.NodeLister
	models func() []sited
	stores func() map[string]held
	log    *slog.Logger

	alone map[string]time.Time // nodes whose loader is away, since when
	quiet time.Time            // until when nothing more is tried: it was refused
}

// sited is a model, and where its bytes come from.
type sited struct {
	model, source string
	revision      functions.Name
}

// held is what the loader of a node says of its store.
type held struct {
	linked bool
	cached []functions.CachedModel
	ready  []functions.Name // revisions that serve there: their bytes are, also where the store lists them under another source
}

// Run writes until ctx ends.
func (n *near) Run(ctx context.Context) error {
	t := time.NewTicker(nearEvery)
	defer t.Stop()
	n.alone = map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			n.round(ctx, now)
		}
	}
}

// round writes to the nodes that say something else than what is.
func (n *near) round(ctx context.Context, now time.Time) {
	if now.Before(n.quiet) {
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
		text := s.near(by, models)
		if !s.linked {
			since, known := n.alone[k.Name]
			if !known {
				since = now
				n.alone[k.Name] = now
			}
			if now.Sub(since) < nearAlone {
				continue // it is started anew, or has not come yet; its disk has what it had
			}
			text = ""
		} else {
			delete(n.alone, k.Name)
		}
		if k.Annotations[knative.NearAnnotation] == text {
			continue
		}
		if written++; written > nearAtOnce || !n.write(ctx, k.Name, text, now) {
			break
		}
	}
	for name := range n.alone {
		if !there[name] {
			delete(n.alone, name)
		}
	}
}

// write reports whether the next node may be written to.
func (n *near) write(ctx context.Context, node, text string, now time.Time) bool {
	var value any
	if text != "" {
		value = text
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{knative.NearAnnotation: value}}})
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
		n.quiet = now.Add(10 * time.Minute)
	default:
		n.log.Debug("which models are near is not written on a node", "node", node, "error", err)
	}
	return false
}

// bySource are the models of each source.
func bySource(models []sited) api.Sources {
	by := api.Sources{}
	for _, m := range models {
		by.Add(m.model, m.source, "")
	}
	return by
}

// near is the annotation: NAMESPACE/MODEL=memory or =disk, with a comma between,
// in the order of names; "" where there is none.
func (h held) near(by api.Sources, models []sited) string {
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
	if more := len(list) - nearModels; more > 0 {
		list = append(list[:nearModels], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ",")
}

// Stores is what the loaders say of the nodes' stores.
func (f *fleet) Stores() map[string]held {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]held, len(f.nodes))
	for name, n := range f.nodes {
		if n.heard != nil {
			out[name] = held{linked: n.linked, cached: n.heard.Cached}
		}
	}
	for _, p := range f.pods {
		if h, ok := out[p.node]; ok && p.rev != nil && p.said != nil && p.said.State == functions.Ready && !p.terminating && !p.over {
			h.ready = append(h.ready, p.rev.name)
			out[p.node] = h
		}
	}
	return out
}

// Sited are the models of the cluster by their clients' names, and their sources.
func (b *books) Sited() []sited {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]sited, 0, len(b.known))
	for key, r := range b.known {
		if r.model.Spec.Source == "" {
			continue
		}
		name := r.service
		if name == "" {
			name = key.Name
		}
		out = append(out, sited{key.Team + "/" + name, r.model.Spec.Source, key})
	}
	return out
}
