package control

import (
	"context"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/thaw-dev/thaw/platform/controlstream"
)

func TestAllowList(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"none":                           "",
		"az://acct/a":                    "az://acct/a",
		" az://acct/a,hf://b/\n s3://c ": "az://acct/a hf://b/ s3://c",
		"://x az:// y":                   "",
		"az://" + strings.Repeat("x", maxAllowed):  "",
		strings.Repeat("az://acct/a ", 3*maxAllow): strings.TrimSpace(strings.Repeat("az://acct/a ", maxAllow)),
	} {
		if got := strings.Join(allowList(text), " "); got != want {
			t.Errorf("%.40q: %.80q, want %.80q", text, got, want)
		}
	}
}

// TestOwnersOfLoadersThatLeft: a loader is sent to from its connect to its disconnect.
func TestOwnersOfLoadersThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spaces, pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
		sent, connected := 0, true
		o := &podOwners{
			namespaces: corelisters.NewNamespaceLister(spaces), pods: corelisters.NewPodLister(pods), log: slog.New(slog.DiscardHandler),
			wakeup: make(chan struct{}, 1), conns: make(chan connEvent, 4), sent: map[string]*controlstream.Owners{},
			send: func(string, controlstream.Update) bool { sent++; return connected },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		expect := func(when string, want int) {
			t.Helper()
			time.Sleep(3 * ownersResend)
			synctest.Wait()
			if sent != want {
				t.Errorf("%s: sent %d times, want %d", when, sent, want)
			}
		}
		expect("before", 0)
		o.loaderChanged("n1", true)
		expect("connected", 1)
		connected = false
		o.loaderChanged("n1", false)
		time.Sleep(time.Second)
		spaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{allowAnnotation: "az://acct/a"}}})
		o.wakeup <- struct{}{}
		expect("gone", 1)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestOwners: loaders get the namespaces of their own pods, only on change, and nothing
// about pods while no namespace has an allow list.
func TestOwners(t *testing.T) {
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	spaces, pods := index(), index()
	space := func(name string, allow ...string) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if len(allow) > 0 {
			ns.Annotations = map[string]string{allowAnnotation: strings.Join(allow, " ")}
		}
		spaces.Update(ns)
	}
	pod := func(ns, uid, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, Namespace: ns, UID: types.UID(uid)}, Spec: corev1.PodSpec{NodeName: node}}
		pods.Update(p)
		return p
	}
	away := ""
	got := map[string]*controlstream.Owners{}
	o := &podOwners{
		namespaces: corelisters.NewNamespaceLister(spaces), pods: corelisters.NewPodLister(pods), log: slog.New(slog.DiscardHandler),
		sent: map[string]*controlstream.Owners{"n1": nil, "n2": nil},
		send: func(node string, d controlstream.Update) bool {
			if node == away {
				return false
			}
			got[node] = d.Owners
			return true
		},
	}
	round := func(want map[string]*controlstream.Owners) {
		t.Helper()
		clear(got)
		o.sendChanged()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("told %+v, want %+v", got, want)
		}
	}
	nothing := &controlstream.Owners{Said: true, Allow: map[string][]string{}}
	space("a")
	space("b")
	pod("a", "1", "n1")
	round(map[string]*controlstream.Owners{"n1": nothing, "n2": nothing})
	round(map[string]*controlstream.Owners{})
	space("b", "az://acct/b")
	pod("b", "2", "")
	allow := map[string][]string{"b": {"az://acct/b"}}
	away = "n2"
	round(map[string]*controlstream.Owners{"n1": {Said: true, Allow: allow, Pods: map[string]string{"1": "a"}}})
	away = ""
	round(map[string]*controlstream.Owners{"n2": {Said: true, Allow: allow}})
	was := pod("b", "2", "n1")
	round(map[string]*controlstream.Owners{"n1": {Said: true, Allow: allow, Pods: map[string]string{"1": "a", "2": "b"}}})
	pods.Delete(was)
	round(map[string]*controlstream.Owners{"n1": {Said: true, Allow: allow, Pods: map[string]string{"1": "a"}}})
	o.sent["n2"] = nil // its loader has reconnected
	round(map[string]*controlstream.Owners{"n2": {Said: true, Allow: allow}})
	space("b")
	round(map[string]*controlstream.Owners{"n1": nothing, "n2": nothing})
}
