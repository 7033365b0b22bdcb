package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	corefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	netapi "knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	netfake "knative.dev/networking/pkg/client/clientset/versioned/fake"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions"

	"github.com/thaw-dev/thaw/platform/controlstream"
)

// play is a Controller with a cluster in memory, in a synctest bubble: tests read the
// shared state only while all goroutines are blocked.
type play struct {
	*testing.T
	net  *netfake.Clientset
	core *corefake.Clientset
	c    *Controller

	mu         sync.Mutex // guards the fields below
	tables     []*controlstream.Table
	applied    uint64
	follow     bool // activators apply each table at once
	activators int
	revisions  []string
}

// start makes a Controller on a cluster that has these objects.
func start(t *testing.T, services []runtime.Object, objects ...runtime.Object) *play {
	p := &play{T: t}
	p.start(services, objects...)
	return p
}

func (p *play) start(services []runtime.Object, objects ...runtime.Object) {
	p.net, p.core = netfake.NewSimpleClientset(objects...), corefake.NewClientset(services...)
	p.net.PrependReactor("*", "ingresses", versions(p.net.Tracker()))
	ingresses := netinformers.NewSharedInformerFactory(p.net, 0)
	others := informers.NewSharedInformerFactory(p.core, 0)
	p.c = New(Options{
		Client:    p.net,
		Ingresses: ingresses.Networking().V1alpha1().Ingresses(),
		Services:  others.Core().V1().Services(),
		Revision: func(namespace, name string) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return slices.Contains(p.revisions, namespace+"/"+name)
		},
		Push: func(table *controlstream.Table) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.tables = append(p.tables, table)
			if p.follow {
				p.applied = table.Version
			}
		},
		Applied: func() (uint64, int) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.applied, p.activators
		},
		Public: public, Private: private,
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.c.Run(ctx) }()
	ingresses.Start(ctx.Done())
	others.Start(ctx.Done())
	p.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			p.Error(err)
		}
		ingresses.Shutdown()
		others.Shutdown()
	})
	p.rest(activatorWait / 2) // caches are polled every 100 ms
}

// versions adds resource versions to client-go's fake: each write makes a new one, and a
// write of an old one is refused.
func versions(tracker clienttesting.ObjectTracker) clienttesting.ReactionFunc {
	last := 0
	return func(a clienttesting.Action) (bool, runtime.Object, error) {
		kind := a.GetResource()
		switch a := a.(type) {
		case clienttesting.UpdateAction: // also for a CreateAction
			in := a.GetObject().(*v1alpha1.Ingress).DeepCopy()
			last++
			version := strconv.Itoa(last)
			if a.GetVerb() == "create" {
				in.ResourceVersion = version
				return true, in, tracker.Create(kind, in, in.Namespace)
			}
			was, err := tracker.Get(kind, in.Namespace, in.Name)
			if err != nil {
				return true, nil, err
			}
			if old := was.(*v1alpha1.Ingress).ResourceVersion; old != in.ResourceVersion {
				return true, nil, apierrors.NewConflict(kind.GroupResource(), in.Name, fmt.Errorf("%s is not %s", in.ResourceVersion, old))
			}
			in.ResourceVersion = version
			return true, in, tracker.Update(kind, in, in.Namespace)
		}
		return false, nil, nil
	}
}

// rest passes bubble time and returns when all goroutines are blocked.
func (p *play) rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// set changes the answers of the Controller's callbacks.
func (p *play) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *play) pushed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.tables)
}

func (p *play) table() *controlstream.Table {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tables[len(p.tables)-1]
}

// apply makes all activators apply the newest table.
func (p *play) apply() {
	version := p.table().Version
	p.set(func() { p.applied = version })
	p.rest(2 * pollInterval)
}

// status formats the written status of an object in one line.
func (p *play) status(name string) string {
	p.Helper()
	in, err := p.net.NetworkingV1alpha1().Ingresses("a").Get(p.Context(), name, metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	if len(in.Status.Conditions) == 0 {
		return "nothing"
	}
	if in.Status.ObservedGeneration != in.Generation {
		return "of an older one"
	}
	ready := in.Status.GetCondition(v1alpha1.IngressConditionReady)
	return strings.TrimSpace(string(ready.Status) + " " + ready.Reason + " " + ready.Message)
}

func (p *play) want(name, status string) {
	p.Helper()
	if got := p.status(name); got != status {
		p.Errorf("%s is %q, want %q", name, got, status)
	}
}

// writes counts the status writes.
func (p *play) writes() (n int) {
	for _, a := range p.net.Actions() {
		if a.GetVerb() == "update" {
			n++
		}
	}
	return n
}

func (p *play) create(in *v1alpha1.Ingress) {
	p.Helper()
	if _, err := p.net.NetworkingV1alpha1().Ingresses(in.Namespace).Create(p.Context(), in, metav1.CreateOptions{}); err != nil {
		p.Fatal(err)
	}
	p.rest(2 * pollInterval)
}

// change sets an object's spec and generation, as the API server does.
func (p *play) change(name, spec string) {
	p.Helper()
	in, err := p.net.NetworkingV1alpha1().Ingresses("a").Get(p.Context(), name, metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	next := object(p.T, name, spec)
	in.Spec, in.Generation = next.Spec, in.Generation+1
	if _, err := p.net.NetworkingV1alpha1().Ingresses("a").Update(p.Context(), in, metav1.UpdateOptions{}); err != nil {
		p.Fatal(err)
	}
	p.net.ClearActions()
	p.rest(2 * pollInterval)
}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: *world().Service("a", "web").Spec.DeepCopy()}
}

// TestController: an object becomes and stays ready once every activator has applied it.
func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := one("x", "{splits: ["+split("web", 100)+"]}")
		other := object(t, "other", web)
		other.Annotations[netapi.IngressClassAnnotationKey] = "edge.ingress.networking.knative.dev"
		p := start(t, []runtime.Object{service("web")}, object(t, "o", web), other)
		p.want("o", "nothing") // until activatorWait is over
		p.rest(activatorWait)
		p.want("o", "Unknown Activators no activator is connected to the controller")
		p.set(func() { p.activators = 2 })
		p.rest(activatorWait)
		p.want("o", "Unknown Activators not all of the 2 activators have applied its routes yet")
		p.apply()
		p.rest(activatorWait)
		p.want("o", "True")
		p.want("other", "nothing")
		in, _ := p.net.NetworkingV1alpha1().Ingresses("a").Get(t.Context(), "o", metav1.GetOptions{})
		if a, b := in.Status.PublicLoadBalancer, in.Status.PrivateLoadBalancer; a == nil || b == nil || len(a.Ingress) != 1 ||
			len(b.Ingress) != 1 ||
			a.Ingress[0].DomainInternal != public || b.Ingress[0].DomainInternal != private {
			t.Errorf("the load balancers are %v and %v", a, b)
		}
		if got := shown(*p.table(), false); got != "x [] {} 100%>10.96.0.7:80\n" || p.pushed() != 1 {
			t.Errorf("of %d tables the last is %s", p.pushed(), got)
		}

		// Without a change nothing is written or pushed.
		p.net.ClearActions()
		p.rest(5 * recompileEvery)
		if p.writes() != 0 || p.pushed() != 1 {
			t.Errorf("%d writes, %d tables", p.writes(), p.pushed())
		}
		// An activator that joins or ends does not change readiness.
		p.set(func() { p.applied, p.activators = 0, 3 })
		p.c.Changed()
		p.rest(2 * activatorWait)
		p.want("o", "True")

		// A changed spec becomes ready with a new table, by one status write.
		version := p.table().Version
		p.set(func() { p.applied = version })
		p.change("o", one("x", "{appendHeaders: {a: b}, splits: ["+split("web", 100)+"]}"))
		p.want("o", "of an older one")
		if p.table().Version <= version {
			t.Fatalf("version %d follows %d", p.table().Version, version)
		}
		p.apply()
		p.want("o", "True")
		if p.writes() != 1 {
			t.Errorf("%d writes for one change", p.writes())
		}

		// An invalid spec removes its routes, and a repaired one restores them.
		p.change("o", one(`"*"`, "{splits: ["+split("web", 100)+"]}"))
		p.want("o", `False Invalid spec.rules[0]: "*" is not a host name`)
		if len(p.table().Hosts) != 0 {
			t.Errorf("it has routes: %v", p.table().Hosts)
		}
		p.change("o", web)
		p.want("o", "of an older one")
		p.apply()
		p.want("o", "True")

		// A deleted object loses its routes.
		if err := p.net.NetworkingV1alpha1().Ingresses("a").Delete(t.Context(), "o", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		p.rest(2 * pollInterval)
		if len(p.table().Hosts) != 0 {
			t.Errorf("it has routes: %v", p.table().Hosts)
		}
	})
}

// TestControllerServices: an object's Services are added, changed and removed.
func TestControllerServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, nil, object(t, "o", one("x", "{splits: ["+split("web", 100)+"]}")))
		<-p.c.Pushed()
		p.set(func() { p.activators = 1 })
		p.apply()
		p.want("o", "Unknown ServiceMissing there is no Service a/web")
		services := p.core.CoreV1().Services("a")
		web, err := services.Create(t.Context(), service("web"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.rest(2 * pollInterval)
		p.want("o", "Unknown ServiceMissing there is no Service a/web") // until the activators have applied it
		p.apply()
		p.want("o", "True")

		web = web.DeepCopy()
		web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		if web, err = services.Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		n := p.pushed()
		p.rest(pollInterval)
		web = web.DeepCopy()
		web.Spec.ClusterIP = "10.96.0.99"
		if _, err = services.Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.rest(pollInterval)
		if got := shown(*p.table(), false); got != "x [] {} 100%>10.96.0.99:80\n" || p.pushed() != n+1 {
			t.Errorf("after %d tables more, the last is %s", p.pushed()-n, got)
		}
		p.want("o", "True")

		if err := services.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		p.rest(pollInterval)
		p.want("o", "Unknown ServiceMissing there is no Service a/web")

		// The name is a revision of our class: no Service is needed.
		p.set(func() { p.revisions = []string{"a/web"} })
		p.c.Changed()
		p.rest(pollInterval)
		if got := shown(*p.table(), false); got != "x [] {} 100%>a/web\n" {
			t.Errorf("the last table is %s", got)
		}
		p.apply()
		p.want("o", "True")
	})
}

// TestControllerRefused: the API server refuses writes for a while.
func TestControllerRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, []runtime.Object{service("web")})
		p.set(func() { p.activators, p.follow = 1, true })
		var refuse atomic.Bool
		refuse.Store(true)
		p.net.PrependReactor("update", "ingresses", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return refuse.Load() && a.GetSubresource() == "status", nil, errors.New("not now")
		})
		p.create(object(t, "o", one("x", "{splits: ["+split("web", 100)+"]}")))
		p.create(object(t, "p", one("z", "{splits: ["+split("web", 100)+"]}")))
		p.net.ClearActions()
		p.rest(10 * retryPause)
		p.want("o", "nothing")
		if n := p.writes(); n < 10 || n > 30 {
			t.Errorf("%d writes in ten pauses, of two objects", n)
		}
		refuse.Store(false)
		p.rest(retryPause)
		p.want("o", "True")
		p.want("p", "True")
	})
}

// TestControllerAgain: a new leader does not repeat written statuses, and its tables have
// higher versions than those of the previous leader.
func TestControllerAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := object(t, "o", one("x", "{splits: ["+split("web", 100)+"]}"))
		p := start(t, []runtime.Object{service("web")}, in)
		p.set(func() { p.activators = 1 })
		p.apply()
		p.want("o", "True")
		in, err := p.net.NetworkingV1alpha1().Ingresses("a").Get(t.Context(), "o", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ahead := p.table().Version + 1e12 // the other controller's clock is ahead
		next := play{T: t, applied: ahead, activators: 1}
		next.start([]runtime.Object{service("web")}, in)
		next.rest(2 * recompileEvery)
		next.want("o", "True")
		if next.writes() != 0 || next.pushed() != 1 || next.table().Version <= ahead {
			t.Errorf("%d writes, %d tables, version %d after %d", next.writes(), next.pushed(), next.table().Version, ahead)
		}
	})
}

// TestControllerMany: a burst of changes costs each object one write.
func TestControllerMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 100
		p := start(t, []runtime.Object{service("web")})
		p.set(func() { p.activators, p.follow = 1, true })
		p.net.ClearActions()
		for i := range many {
			name := "o" + string(rune('a'+i/26)) + string(rune('a'+i%26))
			in := object(t, name, one(name, "{splits: ["+split("web", 100)+"]}"))
			if _, err := p.net.NetworkingV1alpha1().Ingresses("a").Create(t.Context(), in, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		p.rest(time.Second)
		if len(p.table().Hosts) != many || p.writes() != many {
			t.Errorf("%d hosts, %d writes", len(p.table().Hosts), p.writes())
		}
	})
}
