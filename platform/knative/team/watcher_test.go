package team

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/thaw-dev/thaw/platform/controlstream"
)

// TestAdminTokenChanges: a new admin token is accepted after the next reading, and the one
// before is not.
func TestAdminTokenChanges(t *testing.T) {
	kube := fake.NewClientset()
	core := informers.NewSharedInformerFactory(kube, 0).Core().V1()
	token := strings.Repeat("a", 40)
	w := NewWatcher(WatcherOptions{
		Client: kube, Namespaces: core.Namespaces().Lister(), Quotas: core.ResourceQuotas().Lister(), Log: slog.New(slog.DiscardHandler),
		Tokens: func() []string { return []string{token} }, Apply: func(controlstream.Keys) {},
	})
	was := token
	w.read()
	if _, ok := w.KeyStore().Lookup(was); !ok {
		t.Error("the token is refused")
	}
	token = strings.Repeat("b", 40)
	w.read()
	if _, ok := w.KeyStore().Lookup(token); !ok {
		t.Error("the new token is refused")
	}
	if _, ok := w.KeyStore().Lookup(was); ok {
		t.Error("the former token is accepted")
	}
}

// TestReportProblems: unreadable settings of a team are reported once, as a valid Event in its
// namespace.
func TestReportProblems(t *testing.T) {
	kube := fake.NewClientset()
	made := make(chan *corev1.Event, 8)
	kube.PrependReactor("create", "events", func(a k8stesting.Action) (bool, runtime.Object, error) {
		e := a.(k8stesting.CreateAction).GetObject().(*corev1.Event)
		made <- e
		return true, e, nil
	})
	x := &Watcher{o: WatcherOptions{Client: kube, Log: slog.New(slog.DiscardHandler)}, reported: map[string]string{},
		events: make(chan *corev1.Event, 8)}
	x.reportProblems("a", []string{"one", "two"})
	x.reportProblems("a", []string{"one", "two"}) // unchanged
	x.reportProblems("b", nil)                    // no problems
	x.reportProblems("", []string{"of no team"})
	x.reportProblems("a", nil) // repaired
	x.reportProblems("a", []string{"three"})
	close(x.events)
	var got []string
	for e := range x.events {
		got = append(got, e.Namespace+": "+e.Message)
	}
	if len(got) != 2 || got[0] != "a: one; two" || got[1] != "a: three" {
		t.Fatalf("%q", got)
	}

	x.events = make(chan *corev1.Event, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); x.sendEvents(ctx) }()
	x.reportProblems("c", []string{"four"})
	e := <-made
	// Kubernetes accepts an Event only in the namespace of its object.
	if e.Namespace != "c" || e.InvolvedObject.Namespace != "c" || e.InvolvedObject.Name != "c" || e.InvolvedObject.Kind != "Namespace" ||
		e.Type != corev1.EventTypeWarning || e.GenerateName == "" || e.Message != "four" {
		t.Errorf("%+v", e)
	}
	cancel()
	<-done
}
