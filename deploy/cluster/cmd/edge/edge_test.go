package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corelist "k8s.io/client-go/listers/core/v1"
	discoverylist "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	netapi "knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/networking/pkg/client/clientset/versioned/fake"
	netlist "knative.dev/networking/pkg/client/listers/networking/v1alpha1"
)

func shelf(t *testing.T, things ...any) cache.Indexer {
	t.Helper()
	x := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, thing := range things {
		if err := x.Add(thing); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func service(name string, spec corev1.ServiceSpec) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: spec}
}

func TestNames(t *testing.T) {
	no := false
	n := &names{
		node: net.IPv4(10, 0, 0, 1), domain: "example.com",
		services: corelist.NewServiceLister(shelf(t,
			service("web", corev1.ServiceSpec{ClusterIP: "10.96.0.7"}),
			service("pods", corev1.ServiceSpec{ClusterIP: "None"}),
			service("out", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.a.svc.cluster.local"}),
			service("door", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: gateway}),
			service("round", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "round.a.svc.cluster.local"}),
		)),
		slices: discoverylist.NewEndpointSliceLister(shelf(t, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "pods-1", Labels: map[string]string{discoveryv1.LabelServiceName: "pods"}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.244.0.3"}},
				{Addresses: []string{"10.244.0.4"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}},
			},
		})),
	}
	for name, want := range map[string]string{
		"web.a.svc.cluster.local":     "[10.96.0.7]",
		"WEB.a.svc.Cluster.local":     "[10.96.0.7]",
		"pods.a.svc.cluster.local":    "[10.244.0.3]",
		"p1.pods.a.svc.cluster.local": "[10.244.0.3]",
		"out.a.svc.cluster.local":     "[10.96.0.7]",
		"door.a.svc.cluster.local":    "[10.0.0.1]",
		"x.y.example.com":             "[10.0.0.1]",
		"round.a.svc.cluster.local":   "RCodeNameError",
		"none.a.svc.cluster.local":    "RCodeNameError",
		"a.svc.cluster.local":         "RCodeNameError",
		"example.org":                 "RCodeNameError",
		"notexample.com":              "RCodeNameError",
	} {
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7})
		b.StartQuestions()
		b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
		packet, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		var m dnsmessage.Message
		if err := m.Unpack(n.answer(packet)); err != nil || m.ID != 7 || !m.Response || len(m.Questions) != 1 {
			t.Fatalf("%s: %v, %+v", name, err, m)
		}
		got := m.RCode.String()
		if m.RCode == dnsmessage.RCodeSuccess {
			var ips []net.IP
			for _, a := range m.Answers {
				r := a.Body.(*dnsmessage.AResource)
				ips = append(ips, net.IP(r.A[:]))
			}
			got = fmt.Sprint(ips)
		}
		if got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for _, junk := range [][]byte{nil, {1}, make([]byte, 12), []byte("GET / HTTP/1.1\r\n\r\n")} {
		if a := n.answer(junk); a != nil {
			t.Errorf("%q was answered with %q", junk, a)
		}
	}
}

func TestRoutes(t *testing.T) {
	split := func(name string, percent int) v1alpha1.IngressBackendSplit {
		return v1alpha1.IngressBackendSplit{Percent: percent, IngressBackend: v1alpha1.IngressBackend{ServiceNamespace: "a", ServiceName: name, ServicePort: intstr.FromInt32(80)}}
	}
	in := &v1alpha1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x", Generation: 3, Annotations: map[string]string{netapi.IngressClassAnnotationKey: "edge"}},
		Spec: v1alpha1.IngressSpec{Rules: []v1alpha1.IngressRule{{Hosts: []string{"x.example.com"}, HTTP: &v1alpha1.HTTPIngressRuleValue{Paths: []v1alpha1.HTTPIngressPath{
			{Splits: []v1alpha1.IngressBackendSplit{split("old", 80), split("new", 20)}},
			{Path: "/admin", Splits: []v1alpha1.IngressBackendSplit{split("admin", 100)}},
			{Headers: map[string]v1alpha1.HeaderMatch{"Tag": {Exact: "new"}}, Splits: []v1alpha1.IngressBackendSplit{split("tagged", 100)}},
		}}}}},
	}
	other := in.DeepCopy()
	other.Name, other.Annotations[netapi.IngressClassAnnotationKey] = "y", "somebody-else"
	other.Spec.Rules[0].Hosts = []string{"y.example.com"}
	client := fake.NewSimpleClientset(in, other)
	d := &door{class: "edge", local: gateway, client: client, list: netlist.NewIngressLister(shelf(t, in, other))}
	if !d.read(t.Context()) {
		t.Fatal("the ingress was not told that it is ready")
	}
	for name, want := range map[string]bool{"x": true, "y": false} {
		got, err := client.NetworkingV1alpha1().Ingresses("a").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || got.IsReady() != want {
			t.Errorf("%s is ready: %v, %v", name, got.IsReady(), err)
		}
	}
	ask := func(host, path, tag string) string {
		r := httptest.NewRequest(http.MethodGet, "http://"+host+path, nil)
		r.Header.Set("Tag", tag)
		_, s, err := d.find(r)
		if err != nil {
			return "none"
		}
		return s.name
	}
	for _, c := range []struct{ host, path, tag, want string }{
		{"x.example.com", "/admin/x", "", "admin"},
		{"x.example.com:80", "/admin", "new", "admin"},
		{"x.example.com", "/", "new", "tagged"},
		{"y.example.com", "/", "", "none"},
		{"z.example.com", "/", "", "none"},
	} {
		if got := ask(c.host, c.path, c.tag); got != c.want {
			t.Errorf("%s%s (%s) goes to %s, want %s", c.host, c.path, c.tag, got, c.want)
		}
	}
	n := map[string]int{}
	for range 10_000 {
		n[ask("x.example.com", "/", "")]++
	}
	if n["old"] < 7_700 || n["old"] > 8_300 || n["old"]+n["new"] != 10_000 {
		t.Errorf("80 to 20 became %v", n)
	}
}
