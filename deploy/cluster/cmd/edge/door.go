package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelist "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	netapi "knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions"
	netlist "knative.dev/networking/pkg/client/listers/networking/v1alpha1"
)

// door is the ingress: it says of every ingress of its class that it is ready,
// and routes by host, path and header to shares of services. A revision at zero
// has Knative's activators for endpoints, so a route never changes with scale.
type door struct {
	class    string
	local    string
	client   networking.Interface
	services corelist.ServiceLister
	list     netlist.IngressLister
	routes   atomic.Pointer[map[string][]route] // by host
}

type route struct {
	path    string
	headers map[string]string // that a request must have
	add     map[string]string // that it is given
	host    string            // that it is given; empty: its own
	shares  []share
}

type share struct {
	percent         int
	namespace, name string
	port            string
	add             map[string]string
}

// watch keeps the routes, until ctx ends. It returns once all are known.
func (d *door) watch(ctx context.Context) error {
	factory := netinformers.NewSharedInformerFactory(d.client, 0)
	kind := factory.Networking().V1alpha1().Ingresses()
	d.list = kind.Lister()
	bell := make(chan struct{}, 1)
	ring := func(any) {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
	_, err := kind.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: ring, UpdateFunc: func(_, x any) { ring(x) }, DeleteFunc: ring,
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	d.read(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-bell:
				if !d.read(ctx) { // one said no: once more
					time.AfterFunc(time.Second, func() { ring(nil) })
				}
			}
		}
	}()
	return nil
}

// read makes the table anew and then says that what is in it is ready.
func (d *door) read(ctx context.Context) bool {
	all, err := d.list.List(labels.Everything())
	if err != nil {
		slog.Error("no list of ingresses", "err", err)
		return false
	}
	table := map[string][]route{}
	mine := all[:0:0]
	for _, in := range all {
		if in.Annotations[netapi.IngressClassAnnotationKey] != d.class {
			continue
		}
		mine = append(mine, in)
		for _, rule := range in.Spec.Rules {
			if rule.HTTP == nil {
				continue
			}
			for _, p := range rule.HTTP.Paths {
				r := route{path: p.Path, host: p.RewriteHost, add: p.AppendHeaders, headers: map[string]string{}}
				for k, m := range p.Headers {
					r.headers[k] = m.Exact
				}
				for _, s := range p.Splits {
					r.shares = append(r.shares, share{s.Percent, s.ServiceNamespace, s.ServiceName, s.ServicePort.String(), s.AppendHeaders})
				}
				for _, h := range rule.Hosts {
					table[h] = append(table[h], r)
				}
			}
		}
	}
	for _, routes := range table { // the narrower first
		slices.SortStableFunc(routes, func(a, b route) int {
			return cmp.Or(cmp.Compare(len(b.path), len(a.path)), cmp.Compare(len(b.headers), len(a.headers)))
		})
	}
	d.routes.Store(&table)
	ok := true
	for _, in := range mine {
		if !in.IsReady() {
			ok = d.ready(ctx, in.DeepCopy()) && ok
		}
	}
	return ok
}

func (d *door) ready(ctx context.Context, in *v1alpha1.Ingress) bool {
	in.Status.InitializeConditions()
	in.Status.MarkNetworkConfigured()
	at := []v1alpha1.LoadBalancerIngressStatus{{DomainInternal: d.local}}
	in.Status.MarkLoadBalancerReady(at, at)
	in.Status.ObservedGeneration = in.Generation
	if _, err := d.client.NetworkingV1alpha1().Ingresses(in.Namespace).UpdateStatus(ctx, in, metav1.UpdateOptions{}); err != nil {
		slog.Warn("an ingress is not ready yet", "ingress", in.Namespace+"/"+in.Name, "err", err)
		return false
	}
	return true
}

// find is where r goes, and the route it takes; an error says why nowhere.
func (d *door) find(r *http.Request) (*route, *share, error) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	for i := range (*d.routes.Load())[host] {
		x := &(*d.routes.Load())[host][i]
		if !x.takes(r) {
			continue
		}
		n := rand.IntN(100)
		for j := range x.shares {
			s := &x.shares[j]
			if n -= s.percent; n < 0 || len(x.shares) == 1 {
				return x, s, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("nothing here is called %s%s", host, r.URL.Path)
}

func (r *route) takes(req *http.Request) bool {
	if !strings.HasPrefix(req.URL.Path, r.path) {
		return false
	}
	for k, v := range r.headers {
		if req.Header.Get(k) != v {
			return false
		}
	}
	return true
}

type target struct {
	url *url.URL
	*route
	*share
}

type targetKey struct{}

func (d *door) handler() http.Handler {
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext},
		Rewrite: func(p *httputil.ProxyRequest) {
			t := p.In.Context().Value(targetKey{}).(target)
			p.SetURL(t.url)
			p.Out.Host = cmp.Or(t.route.host, p.In.Host)
			p.SetXForwarded()
			for _, more := range []map[string]string{t.route.add, t.share.add} {
				for _, k := range slices.Sorted(maps.Keys(more)) {
					p.Out.Header.Set(k, more[k])
				}
			}
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, s, err := d.find(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		service, err := d.services.Services(s.namespace).Get(s.name)
		if err != nil || service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone {
			http.Error(w, fmt.Sprintf("the service %s/%s has no address", s.namespace, s.name), http.StatusServiceUnavailable)
			return
		}
		to := &url.URL{Scheme: "http", Host: net.JoinHostPort(service.Spec.ClusterIP, s.port)}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, target{to, x, s})))
	})
}
