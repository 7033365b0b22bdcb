package ingress

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"sigs.k8s.io/yaml"
)

// TestPanicOfOneObject: a panic while one object is compiled is a problem of that object.
func TestPanicOfOneObject(t *testing.T) {
	good, bad := object(t, "good", one("good.example.com", "{splits: ["+split("web", 100)+"]}")), object(t, "bad", one("bad.example.com", "{splits: ["+split("panics", 100)+"]}"))
	table, problems := Compile([]*v1alpha1.Ingress{bad, good}, Lookup{
		Revision: func(string, string) bool { return false },
		Service: func(_, name string) *corev1.Service {
			if name == "panics" {
				panic("no such port")
			}
			s := new(corev1.Service)
			s.Spec.Ports = []corev1.ServicePort{{Port: 80}}
			s.Spec.ClusterIP = "10.0.0.1"
			return s
		},
	})
	if p := problems[types.NamespacedName{Namespace: "a", Name: "bad"}]; p == nil || p.Reason != reasonInvalid || !strings.Contains(p.Message, "no such port") {
		t.Errorf("%+v", p)
	}
	if p := problems[types.NamespacedName{Namespace: "a", Name: "good"}]; p != nil {
		t.Errorf("%+v", p)
	}
	if len(table.Hosts) != 1 || table.Hosts[0].Name != "good.example.com" {
		t.Errorf("%+v", table.Hosts)
	}
}

// TestClusterNameOfAnother: the short in-cluster name of a Service belongs to its namespace,
// also where an older object of another namespace has it as an external host.
func TestClusterNameOfAnother(t *testing.T) {
	mapping := object(t, "mapping", one("llama.b", "{splits: ["+split("rev1", 100)+"]}"))
	service := object(t, "llama", "rules: [{hosts: [llama.b, llama.b.svc], visibility: ClusterLocal, http: {paths: [{splits: [{serviceNamespace: b, serviceName: llama-1, servicePort: 80, percent: 100}]}]}}]")
	service.Namespace = "b"
	service.CreationTimestamp.Time = mapping.CreationTimestamp.Add(1e9)
	known := Lookup{Revision: func(string, string) bool { return true }, Service: func(string, string) *corev1.Service { return nil }}
	table, problems := Compile([]*v1alpha1.Ingress{mapping, service}, known)
	if len(table.Hosts) != 2 || table.Hosts[0].Name != "llama.b" || !table.Hosts[0].Internal || table.Hosts[0].Paths[0].Splits[0].Function.Team != "b" {
		t.Errorf("%+v", table.Hosts)
	}
	if p := problems[types.NamespacedName{Namespace: "a", Name: "mapping"}]; len(problems) != 1 || p == nil || p.Reason != reasonHostTaken || !strings.Contains(p.Message, "belongs to the namespace b") {
		t.Errorf("%+v", problems)
	}
	// A domain of two parts that is no such name is a host as any other.
	table, problems = Compile([]*v1alpha1.Ingress{object(t, "mapping", one("example.com", "{splits: ["+split("rev1", 100)+"]}")), service}, known)
	if len(table.Hosts) != 3 || len(problems) != 0 {
		t.Errorf("%+v %+v", table.Hosts, problems)
	}
}

// TestHostOfAnother: the problem of an object whose host is taken names no object of another
// namespace.
func TestHostOfAnother(t *testing.T) {
	first, second := object(t, "secret-name", one("x.example.com", "{splits: ["+split("rev1", 100)+"]}")), object(t, "second", one("x.example.com", "{splits: [{serviceNamespace: b, serviceName: rev1, servicePort: 80, percent: 100}]}"))
	second.Namespace = "b"
	second.CreationTimestamp.Time = first.CreationTimestamp.Add(1e9)
	_, problems := Compile([]*v1alpha1.Ingress{first, second}, Lookup{Revision: func(string, string) bool { return true }, Service: func(string, string) *corev1.Service { return nil }})
	p := problems[types.NamespacedName{Namespace: "b", Name: "second"}]
	if len(problems) != 1 || p == nil || p.Reason != reasonHostTaken || strings.Contains(p.Message, "secret-name") || !strings.Contains(p.Message, "another namespace") {
		t.Errorf("%+v", p)
	}
}

// FuzzCompile: any spec that a tenant writes is compiled or is a problem of its object, and
// its neighbour keeps its host.
func FuzzCompile(f *testing.F) {
	f.Add(one("b.example.com", "{splits: ["+split("web", 100)+"]}"))
	f.Add(one("a.example.com", "{path: /x, rewriteHost: b.example.com, splits: ["+split("web", 50)+","+split("rev1", 50)+"]}"))
	f.Add("rules: [{hosts: [a.example.com]}]")
	f.Add("rules: [{}, null]")
	f.Add("httpOption: Redirected\nrules: [{hosts: [''], visibility: ClusterLocal, http: {paths: [{headers: {a: {exact: b}}, appendHeaders: {a: b}}]}}]")
	f.Fuzz(func(t *testing.T, spec string) {
		if len(spec) > 32<<10 {
			return
		}
		other := object(t, "other", one("a.example.com", "{splits: ["+split("rev1", 100)+"]}"))
		in := object(t, "fuzzed", "{}")
		in.CreationTimestamp.Time = in.CreationTimestamp.Add(1e9)
		if yaml.Unmarshal([]byte(spec), &in.Spec) != nil {
			return
		}
		table, _ := Compile([]*v1alpha1.Ingress{in, other}, Lookup{
			Revision: func(_, name string) bool { return strings.HasPrefix(name, "rev") },
			Service:  func(string, string) *corev1.Service { return nil },
		})
		kept := false
		for _, h := range table.Hosts {
			kept = kept || h.Name == "a.example.com"
		}
		if !kept {
			t.Errorf("the host of the older object is gone: %+v", table.Hosts)
		}
	})
}
