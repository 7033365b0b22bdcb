package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
)

func TestAnnotationText(t *testing.T) {
	of := func(model, source string) modelSource { return modelSource{model: model, source: source} }
	by := bySource([]modelSource{
		of("b/qwen", "az://acct/models/qwen"), of("a/llama", "az://acct/models/llama/"), of("c/llama", "az://acct/models/llama"),
		of("a/llama", "az://acct/models/llama"), of("x/bad", "what://is this"), of("x/far", "az://acct/models/far"),
	})
	cached := func(source string, t functions.Tier) functions.CachedModel {
		return functions.CachedModel{Source: source, Tier: t}
	}
	llama, qwen := "az://acct/models/llama", "az://acct/models/qwen"
	for want, list := range map[string][]functions.CachedModel{
		"":                          {cached("az://acct/models/else", functions.TierNVMe)},
		"a/llama=disk,c/llama=disk": {cached(llama, functions.TierNVMe)},
		"b/qwen=memory":             {cached(qwen, functions.TierNVMe), cached(qwen+"\n[\"*.txt\"]", functions.TierDRAM)},
		"a/llama=memory,b/qwen=disk,c/llama=memory": {cached(qwen, functions.TierNVMe), cached(llama, functions.TierDRAM), cached(llama, functions.TierNVMe)},
	} {
		if got := annotation(clusterstate.Store{Connected: true, Cached: list}, by, nil); got != want {
			t.Errorf("%v: %q, want %q", list, got, want)
		}
	}
	// A serving model is cached, under whatever source the store lists it.
	rev := functions.Name{Team: "d", Name: "same-00001"}
	serves := clusterstate.Store{Connected: true, Cached: []functions.CachedModel{cached(qwen, functions.TierDRAM)}, Ready: []functions.Name{rev}}
	if got := annotation(serves, by, []modelSource{{"d/same", "az://acct/models/same", rev}, of("d/other", "az://x/y/z")}); got != "b/qwen=memory,d/same=disk" {
		t.Errorf("%q", got)
	}
	// The annotation is bounded.
	by = api.Sources{}
	var many []functions.CachedModel
	for i := range 300 {
		s := fmt.Sprintf("az://acct/models/%03d", i)
		by[s], many = []string{fmt.Sprintf("team/model-%03d", i)}, append(many, cached(s, functions.TierNVMe))
	}
	got := annotation(clusterstate.Store{Connected: true, Cached: many}, by, nil)
	if strings.Count(got, "=") != annotatedModels || !strings.HasPrefix(got, "team/model-000=disk,") ||
		!strings.HasSuffix(got, ",and 236 more") {
		t.Errorf("%q", got)
	}
}

// TestAnnotationWritten: annotations are written only when they change, to a bounded number
// of nodes per round. A node without a loader keeps its annotation for a while, and a
// refused write pauses further writes.
func TestAnnotationWritten(t *testing.T) {
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	add := func(name, near string) {
		k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if near != "" {
			k.Annotations = map[string]string{knative.CachedModelsAnnotation: near}
		}
		index.Update(k)
	}
	var refuse error
	var wrote []string
	kube := fake.NewClientset()
	kube.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.PatchAction)
		var m struct {
			Metadata map[string]map[string]*string
			Spec     any
		}
		if err := json.Unmarshal(p.GetPatch(), &m); err != nil || len(m.Metadata) != 1 || len(m.Metadata["annotations"]) != 1 || m.Spec != nil {
			t.Errorf("%s: more than the annotation: %s", p.GetName(), p.GetPatch())
		}
		text := "-"
		if v := m.Metadata["annotations"][knative.CachedModelsAnnotation]; v != nil {
			text = *v
		}
		wrote = append(wrote, p.GetName()+" "+text)
		if refuse != nil {
			return true, nil, refuse
		}
		add(p.GetName(), strings.TrimPrefix(text, "-"))
		return true, &corev1.Node{}, nil
	})
	stores := map[string]clusterstate.Store{}
	has := clusterstate.Store{Connected: true, Cached: []functions.CachedModel{{Source: "az://a/b/m", Tier: functions.TierNVMe}}}
	n := &cacheAnnotator{
		kube: kube, nodes: corelisters.NewNodeLister(index), log: slog.New(slog.DiscardHandler), absentSince: map[string]time.Time{},
		models: func() []modelSource { return []modelSource{{model: "t/m", source: "az://a/b/m"}} }, stores: func() map[string]clusterstate.Store { return stores },
	}
	now := time.Unix(1e9, 0)
	round := func(d time.Duration, want ...string) {
		t.Helper()
		now, wrote = now.Add(d), nil
		n.annotate(context.Background(), now)
		if strings.Join(wrote, "; ") != strings.Join(want, "; ") {
			t.Errorf("written %q, want %q", wrote, want)
		}
	}
	add("n1", "")
	add("n2", "t/old=disk")
	round(0)
	stores["n1"] = has
	round(annotateEvery, "n1 t/m=disk")
	round(annotateEvery)             // already written
	round(absentLoaderGrace, "n2 -") // no loader connected
	stores["n1"] = clusterstate.Store{Cached: has.Cached}
	round(annotateEvery)
	stores["n1"] = has
	round(absentLoaderGrace) // reconnected within the grace
	stores["n1"] = clusterstate.Store{Connected: true}
	round(annotateEvery, "n1 -")

	stores["n1"] = has
	refuse = status.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("no"))
	round(annotateEvery, "n1 t/m=disk")
	round(annotateEvery)
	refuse = nil
	round(10*time.Minute, "n1 t/m=disk")

	for i := range 2 * annotateAtOnce {
		name := fmt.Sprintf("x%03d", i)
		add(name, "")
		stores[name] = has
	}
	for range 2 {
		now, wrote = now.Add(annotateEvery), nil
		n.annotate(context.Background(), now)
		if len(wrote) != annotateAtOnce {
			t.Errorf("%d nodes were written to at once", len(wrote))
		}
	}
	round(annotateEvery)
}
