package team

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

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

// TestReportProblems: unreadable settings of a team are reported once, as an Event of their
// namespace.
func TestReportProblems(t *testing.T) {
	events := record.NewFakeRecorder(8)
	events.IncludeObject = true
	x := &Watcher{o: WatcherOptions{Events: events, Log: slog.New(slog.DiscardHandler)}, reported: map[string]string{}}
	x.reportProblems("a", []string{"one", "two"})
	x.reportProblems("a", []string{"one", "two"}) // unchanged
	x.reportProblems("b", nil)                    // no problems
	x.reportProblems("", []string{"of no team"})
	x.reportProblems("a", nil) // repaired
	x.reportProblems("a", []string{strings.Repeat("3", 2*maxEventMessage)})
	close(events.Events)
	got := []string{}
	for e := range events.Events {
		got = append(got, e)
	}
	object := " involvedObject{kind=Namespace,apiVersion=v1}"
	want := []string{"Warning BadSettings one; two" + object, "Warning BadSettings " + strings.Repeat("3", maxEventMessage) + "…" + object}
	if !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
}
