package ingress

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/thaw-dev/thaw/platform/controlstream"
)

// TestPanicOfOneObject: a panic while one object is compiled is a problem of that object.
func TestPanicOfOneObject(t *testing.T) {
	good, bad := object(t, "good", one("good.example.com", "{splits: ["+split("web", 100)+"]}")),
		object(t, "bad", one("bad.example.com", "{splits: ["+split("panics", 100)+"]}"))
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
	if p := problems[types.NamespacedName{Namespace: "a", Name: "bad"}]; p == nil || p.Reason != reasonInvalid ||
		!strings.Contains(p.Message, "no such port") {
		t.Errorf("%+v", p)
	}
	if p := problems[types.NamespacedName{Namespace: "a", Name: "good"}]; p != nil {
		t.Errorf("%+v", p)
	}
	if len(table.Hosts) != 1 || table.Hosts[0].Name != "good.example.com" {
		t.Errorf("%+v", table.Hosts)
	}
}

// TestClusterNameOfAnother: the short in-cluster name of a Service and an external host that
// reads the same are two hosts. Neither a domain mapping, though older, takes the name inside
// the cluster, nor a Service in a namespace named like a top-level domain the public domain.
func TestClusterNameOfAnother(t *testing.T) {
	known := Lookup{
		Revision: func(_, name string) bool { return name != "self" },
		Service: func(string, string) *corev1.Service {
			return &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: private, Ports: []corev1.ServicePort{{Port: 80}}}}
		},
		Public: public, Private: private,
	}
	mapping := object(t, "mapping", one("Llama.io", "{splits: ["+split("rev1", 100)+"]}"))
	service := object(t, "llama", "rules: [{hosts: [llama.io, llama.io.svc], visibility: ClusterLocal, http: {paths: [{splits: "+
		"[{serviceNamespace: io, serviceName: llama-1, servicePort: 80, percent: 100}]}]}}]")
	service.Namespace = "io"
	inside := object(t, "inside", one("vanity.org", "{rewriteHost: llama.io, splits: ["+split("self", 100)+"]}"))
	for what, first := range map[string]time.Duration{"the mapping is older": -time.Second, "the service is older": time.Second} {
		mapping.CreationTimestamp.Time = service.CreationTimestamp.Add(first)
		table, problems := Compile([]*v1alpha1.Ingress{service, inside, mapping}, known)
		want := "llama.io [] {} 100%>a/rev1\nllama.io internal [] {} 100%>io/llama-1\nllama.io.svc internal [] {} 100%>io/llama-1\n" +
			"vanity.org [] {} as llama.io 100%>io/llama-1\n" // which leads to the private listener
		if got := shown(table, false); got != want || len(problems) != 0 {
			t.Errorf("%s: the table is\n%swant\n%s%v", what, got, want, problems)
		}
	}
}

// TestHostOfAnother: the problem of an object whose host is taken names no object of another
// namespace.
func TestHostOfAnother(t *testing.T) {
	first, second := object(t, "secret-name", one("x.example.com", "{splits: ["+split("rev1", 100)+"]}")),
		object(t, "second", one("x.example.com", "{splits: [{serviceNamespace: b, serviceName: rev1, servicePort: 80, percent: 100}]}"))
	second.Namespace = "b"
	second.CreationTimestamp.Time = first.CreationTimestamp.Add(1e9)
	_, problems := Compile([]*v1alpha1.Ingress{first, second}, Lookup{Revision: func(string, string) bool { return true }, Service: func(string, string) *corev1.Service { return nil }})
	p := problems[types.NamespacedName{Namespace: "b", Name: "second"}]
	if len(problems) != 1 || p == nil || p.Reason != reasonHostTaken || strings.Contains(p.Message, "secret-name") ||
		!strings.Contains(p.Message, "another namespace") {
		t.Errorf("%+v", p)
	}
}

// TestRoutesAreBounded: a namespace with too many routes is told so, and neither takes the
// routes of others away nor makes a table that no activator takes.
func TestRoutesAreBounded(t *testing.T) {
	known := Lookup{Revision: func(string, string) bool { return true }, Service: func(string, string) *corev1.Service { return nil }}
	long := strings.Repeat("l", 50_000) // so that few hosts are enough
	var objects []*v1alpha1.Ingress
	add := func(namespace string, i, hosts int, field string) {
		in := object(t, fmt.Sprintf("many-%d", i), one("x.example.com", "{splits: ["+split("rev1", 100)+"]}"))
		in.Namespace = namespace
		in.CreationTimestamp.Time = in.CreationTimestamp.Add(time.Duration(len(objects)) * time.Second)
		rule := &in.Spec.Rules[0]
		rule.HTTP.Paths[0].Splits[0].ServiceNamespace = namespace
		rule.HTTP.Paths[0].AppendHeaders = map[string]string{"X-Long": field}
		rule.Hosts = nil
		for j := range hosts {
			rule.Hosts = append(rule.Hosts, fmt.Sprintf("h-%d-%d.%s.example.com", i, j, namespace))
		}
		objects = append(objects, in)
	}
	ofCluster := 0
	refused := func() (of map[string]int, table controlstream.Table) {
		table, problems := Compile(objects, known)
		of = map[string]int{}
		ofCluster = 0
		for name, p := range problems {
			if p.Reason != reasonTooLarge || p.Wait {
				t.Fatalf("%s: %+v", name, p)
			}
			of[name.Namespace]++
			if strings.Contains(p.Message, "of the cluster") {
				ofCluster++
			}
		}
		return of, table
	}
	for i := range 30 {
		add("greedy", i, 20, long)
	}
	add("modest", 0, 3, "short")
	of, table := refused()
	if of["greedy"] < 10 || of["greedy"] > 29 || of["modest"] != 0 || ofCluster > 0 ||
		!slices.ContainsFunc(table.Hosts, func(h controlstream.Host) bool { return strings.HasSuffix(h.Name, ".modest.example.com") }) {
		t.Errorf("refused: %v", of)
	}
	for n := range 6 {
		for i := range 10 {
			add(fmt.Sprintf("other-%d", n), i, 20, long)
		}
	}
	of, table = refused()
	if of["modest"] != 0 || ofCluster == 0 {
		t.Errorf("refused: %v, %d of them for the cluster's bound", of, ofCluster)
	}
	var sent bytes.Buffer
	if err := gob.NewEncoder(&sent).Encode(&table); err != nil || sent.Len() > maxRoutes {
		t.Errorf("the table has %d bytes, %v", sent.Len(), err)
	}
}

// FuzzCompile: any spec that a tenant writes is compiled or is a problem of its object, and
// its neighbour keeps its host.
func FuzzCompile(f *testing.F) {
	f.Add(one("b.example.com", "{splits: ["+split("web", 100)+"]}"))
	f.Add(one("a.example.com", "{path: /x, rewriteHost: b.example.com, splits: ["+split("web", 50)+","+split("rev1", 50)+"]}"))
	f.Add("rules: [{hosts: [a.example.com]}]")
	f.Add("rules: [{}, null]")
	f.Add("httpOption: Redirected\nrules: [{hosts: [''], visibility: ClusterLocal, http: {paths: [{headers: {a: {exact: b}}, " +
		"appendHeaders: {a: b}}]}}]")
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
