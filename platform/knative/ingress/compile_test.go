package ingress

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	netapi "knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	kingress "knative.dev/networking/pkg/ingress"
	"sigs.k8s.io/yaml"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

const (
	public  = "thaw.thaw-system.svc.cluster.local"
	private = "thaw-local.thaw-system.svc.cluster.local"
)

// object returns an Ingress of namespace a with a spec in YAML.
func object(t testing.TB, name, spec string) *v1alpha1.Ingress {
	t.Helper()
	in := &v1alpha1.Ingress{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: name, UID: types.UID("uid-" + name), Generation: 1,
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		Annotations:       map[string]string{netapi.IngressClassAnnotationKey: Class},
	}}
	if err := yaml.UnmarshalStrict([]byte(spec), &in.Spec); err != nil {
		t.Fatal(err)
	}
	return in
}

func route(in *v1alpha1.Ingress, name string) *v1alpha1.Ingress {
	in.Labels = map[string]string{"serving.knative.dev/route": name, "serving.knative.dev/routeNamespace": in.Namespace}
	return in
}

func split(service string, percent int) string {
	return fmt.Sprintf("{serviceNamespace: a, serviceName: %s, servicePort: 80, percent: %d}", service, percent)
}

// one returns a spec with one public host and these paths.
func one(host string, paths ...string) string {
	return "rules: [{hosts: [" + host + "], visibility: ExternalIP, http: {paths: [" + strings.Join(paths, ", ") + "]}}]"
}

// world has Services of all kinds in namespace a; names beginning with rev are revisions
// of our class.
func world() Lookup {
	h2c, plain := "kubernetes.io/h2c", "http"
	services := map[string]corev1.ServiceSpec{
		"web":      {ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "admin", Port: 81}, {Name: "https", Port: 443}}},
		"two":      {ClusterIP: "10.96.0.8", Ports: []corev1.ServicePort{{Name: "http2", Port: 80}}},
		"proto":    {ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Name: "x", Port: 80, AppProtocol: &h2c}, {Name: "http2", Port: 81, AppProtocol: &plain}}},
		"six":      {ClusterIP: "fd00::7", Ports: []corev1.ServicePort{{Port: 80}}},
		"pods":     {ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
		"new":      {Ports: []corev1.ServicePort{{Port: 80}}},
		"out":      {Type: corev1.ServiceTypeExternalName, ExternalName: "Example.org."},
		"loopback": {Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
		"local":    {Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
		"self":     {Type: corev1.ServiceTypeExternalName, ExternalName: private, Ports: []corev1.ServicePort{{Name: "http2", Port: 80}}},
		"front":    {Type: corev1.ServiceTypeExternalName, ExternalName: public},
	}
	return Lookup{
		Revision: func(namespace, name string) bool { return namespace == "a" && strings.HasPrefix(name, "rev") },
		Service: func(namespace, name string) *corev1.Service {
			spec, ok := services[name]
			if !ok || namespace != "a" {
				return nil
			}
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
		},
		Public: public, Private: private,
	}
}

// shown formats a table with a line per path, those of probes only if probes is set.
func shown(table controlstream.Table, probes bool) string {
	var b strings.Builder
	pairs := func(m map[string]string) string {
		var out []string
		for _, k := range slices.Sorted(maps.Keys(m)) {
			out = append(out, k+"="+m[k])
		}
		return strings.Join(out, ",")
	}
	splits := func(all []controlstream.Split) {
		for _, s := range all {
			to := s.Address
			if s.H2C {
				to = "h2c:" + to
			}
			if s.Function != (functions.Name{}) {
				to += s.Function.String()
			}
			fmt.Fprintf(&b, " %d%%>%s", s.Percent, to)
			if s.Append != nil {
				fmt.Fprintf(&b, "+%s", pairs(s.Append))
			}
		}
		b.WriteByte('\n')
	}
	for _, h := range table.Hosts {
		for _, p := range h.Paths {
			if _, probe := p.Headers["K-Network-Hash"]; probe && !probes {
				continue
			}
			b.WriteString(h.Name)
			if h.Internal {
				b.WriteString(" internal")
			}
			if h.Secure {
				b.WriteString(" secure")
			}
			fmt.Fprintf(&b, " [%s] {%s}", p.Prefix, pairs(p.Headers))
			if p.Rewrite != "" {
				fmt.Fprintf(&b, " as %s", p.Rewrite)
			}
			if p.Append != nil {
				fmt.Fprintf(&b, " +%s", pairs(p.Append))
			}
			splits(p.Splits)
		}
	}
	for _, m := range table.Models {
		fmt.Fprintf(&b, "model %s", m.Name)
		splits(m.Splits)
	}
	return b.String()
}

func TestCompile(t *testing.T) {
	whole := func(service string) string { return "{splits: [" + split(service, 100) + "]}" }
	port := func(service, port string) string {
		return "{splits: [{serviceNamespace: a, serviceName: " + service + ", servicePort: " + port + "}]}"
	}
	for name, c := range map[string]struct {
		specs []string // specs of the objects o0, o1, …
		want  string   // the compiled table
		wrong string   // "object Reason: part of the message" of each problem, or ""
	}{
		"nothing": {nil, "", ""},
		"a host": {[]string{one("X.example.com", whole("web"))},
			"x.example.com [] {} 100%>10.96.0.7:80\n", ""},
		"no percent is all": {[]string{one("x", "{splits: ["+split("web", 0)+"]}")},
			"x [] {} 100%>10.96.0.7:80\n", ""},
		"no visibility is for all": {[]string{"rules: [{hosts: [x], http: {paths: [" + whole("web") + "]}}]"},
			"x [] {} 100%>10.96.0.7:80\n", ""},
		"shares": {[]string{one("x", "{splits: ["+split("web", 80)+", "+split("two", 0)+", "+split("rev-2", 20)+"]}")},
			"x [] {} 80%>10.96.0.7:80 20%>a/rev-2\n", ""},
		"header fields are set": {[]string{one("x", "{appendHeaders: {foo-bar: one}, splits: [{serviceNamespace: a, serviceName: rev, servicePort: 80, appendHeaders: {foo-bar: two, x: v}}]}")},
			"x [] {} +Foo-Bar=one 100%>a/rev+Foo-Bar=two,X=v\n", ""},
		"order": {[]string{one("x",
			whole("web"), "{path: /a, splits: ["+split("two", 100)+"]}", "{path: /a/b, splits: ["+split("web", 100)+"]}",
			"{headers: {tag: {exact: new}}, splits: ["+split("rev", 100)+"]}",
			"{path: /a, headers: {tag: {exact: new}}, splits: ["+split("rev", 100)+"]}",
			"{path: /c, splits: ["+split("rev1", 100)+"]}", "{path: /c, splits: ["+split("rev2", 100)+"]}")},
			"x [/a/b] {} 100%>10.96.0.7:80\nx [/a] {Tag=new} 100%>a/rev\nx [/a] {} 100%>h2c:10.96.0.8:80\n" +
				"x [/c] {} 100%>a/rev1\nx [/c] {} 100%>a/rev2\nx [] {Tag=new} 100%>a/rev\nx [] {} 100%>10.96.0.7:80\n", ""},
		"several hosts, and rules of one": {[]string{"rules: [{hosts: [z, x], visibility: ClusterLocal, http: {paths: [" + whole("rev") + "]}}, {hosts: [x], visibility: ClusterLocal, http: {paths: [{path: /a, splits: [" + split("web", 100) + "]}]}}]"},
			"x internal [/a] {} 100%>10.96.0.7:80\nx internal [] {} 100%>a/rev\nz internal [] {} 100%>a/rev\n", ""},
		"https alone, but not inside": {[]string{"httpOption: Redirected\nrules: [{hosts: [x], http: {paths: [" + whole("rev") + "]}}, {hosts: [z], visibility: ClusterLocal, http: {paths: [" + whole("rev") + "]}}]"},
			"x secure [] {} 100%>a/rev\nz internal [] {} 100%>a/rev\n", ""},
		"rewritten": {[]string{one("x", "{rewriteHost: y.org, splits: ["+split("out", 100)+"]}")},
			"x [] {} as y.org 100%>example.org:80\n", ""},

		"a port by name":              {[]string{one("x", port("web", "admin"))}, "x [] {} 100%>10.96.0.7:81\n", ""},
		"h2c by its protocol":         {[]string{one("x", port("proto", "80"))}, "x [] {} 100%>h2c:10.96.0.9:80\n", ""},
		"the protocol before a name":  {[]string{one("x", port("proto", "81"))}, "x [] {} 100%>10.96.0.9:81\n", ""},
		"an address of version 6":     {[]string{one("x", port("six", "80"))}, "x [] {} 100%>[fd00::7]:80\n", ""},
		"a service without address":   {[]string{one("x", port("pods", "80"))}, "x [] {} 100%>pods.a.svc:8080\n", ""},
		"no service":                  {[]string{one("x", port("none", "80"))}, "x [] {} 100%>none.a.svc:0\n", "o0 ServiceMissing: no Service a/none"},
		"a service without IP yet":    {[]string{one("x", port("new", "80"))}, "x [] {} 100%>new.a.svc:0\n", "o0 ServiceMissing: no address yet"},
		"no such port":                {[]string{one("x", port("web", "9"))}, "x [] {} 100%>web.a.svc:0\n", "o0 PortMissing: no port 9"},
		"no port of that name":        {[]string{one("x", port("web", "none"))}, "x [] {} 100%>web.a.svc:0\n", "o0 PortMissing: no port none"},
		"a name of an external name":  {[]string{one("x", port("out", "http"))}, "x [] {} 100%>out.a.svc:0\n", "o0 PortMissing: no port http"},
		"TLS to a service":            {[]string{one("x", port("web", "443"))}, "x [] {} 100%>web.a.svc:0\n", "o0 InternalTLS: system-internal-tls"},
		"TLS to a revision of ours":   {[]string{one("x", port("rev", "443"))}, "x [] {} 100%>a/rev\n", ""},
		"an external address":         {[]string{one("x", port("loopback", "80"))}, "x [] {} 100%>loopback.a.svc:0\n", "o0 Invalid: not a DNS name"},
		"our own machine":             {[]string{one("x", port("local", "80"))}, "x [] {} 100%>local.a.svc:0\n", "o0 Invalid: not a DNS name"},
		"the others are still served": {[]string{one("x", "{splits: ["+split("none", 50)+", "+split("web", 50)+"]}")}, "x [] {} 50%>none.a.svc:0 50%>10.96.0.7:80\n", "o0 ServiceMissing: no Service a/none"},

		"empty":                {[]string{"{}"}, "", "o0 Invalid: missing field(s): spec"},
		"no paths":             {[]string{"rules: [{hosts: [x], http: {paths: []}}]"}, "", "o0 Invalid: paths"},
		"no host":              {[]string{"rules: [{http: {paths: [" + whole("web") + "]}}]"}, "", "o0 Invalid: names no host"},
		"any host":             {[]string{one(`"*.example.com"`, whole("web"))}, "", "o0 Invalid: not a host name"},
		"a host with a port":   {[]string{one(`"x:80"`, whole("web"))}, "", "o0 Invalid: not a host name"},
		"an empty host":        {[]string{one(`""`, whole("web"))}, "", "o0 Invalid: not a host name"},
		"in and out":           {[]string{"rules: [{hosts: [x], http: {paths: [" + whole("web") + "]}}, {hosts: [X], visibility: ClusterLocal, http: {paths: [" + whole("web") + "]}}]"}, "", "o0 Invalid: in one rule and external in another"},
		"another visibility":   {[]string{"rules: [{hosts: [x], visibility: Moon, http: {paths: [" + whole("web") + "]}}]"}, "", `o0 Invalid: no visibility "Moon"`},
		"another's name":       {[]string{one("x.b.svc.cluster.local", whole("web"))}, "", "o0 Invalid: belongs to the namespace b"},
		"another's short name": {[]string{"rules: [{hosts: [x.a, x.b], visibility: ClusterLocal, http: {paths: [" + whole("web") + "]}}]"}, "", "o0 Invalid: belongs to the namespace b"},
		"a name of two for all": {[]string{one("x.b", whole("web"))},
			"x.b [] {} 100%>10.96.0.7:80\n", ""},
		"not 100":              {[]string{one("x", "{splits: ["+split("web", 80)+", "+split("two", 19)+"]}")}, "", "o0 Invalid: must total to 100"},
		"another's namespace":  {[]string{one("x", "{splits: [{serviceNamespace: b, serviceName: web, servicePort: 80}]}")}, "", "o0 Invalid: service namespace must match"},
		"a path without /":     {[]string{one("x", "{path: a, splits: ["+split("web", 100)+"]}")}, "", "o0 Invalid: does not begin with /"},
		"a bad host to be":     {[]string{one("x", `{rewriteHost: "a b", splits: [`+split("web", 100)+"]}")}, "", "o0 Invalid: not a host name"},
		"a bad field":          {[]string{one("x", `{appendHeaders: {"a b": c}, splits: [`+split("web", 100)+"]}")}, "", "o0 Invalid: not a valid header field"},
		"a bad value":          {[]string{one("x", `{headers: {a: {exact: "b\nc"}}, splits: [`+split("web", 100)+"]}")}, "", "o0 Invalid: not a valid header field"},
		"a bad field of share": {[]string{one("x", `{splits: [{serviceNamespace: a, serviceName: web, servicePort: 80, appendHeaders: {"": c}}]}`)}, "", "o0 Invalid: not a valid header field"},
		"a bad option":         {[]string{"httpOption: Maybe\n" + one("x", whole("web"))}, "", "o0 Invalid: httpOption"},
		"what is wrong hinders no other": {[]string{one(`"*"`, whole("web")), one("x", whole("web"))},
			"x [] {} 100%>10.96.0.7:80\n", "o0 Invalid: not a host name"},
		"a host belongs to the oldest": {[]string{one("x", whole("web")), "rules: [{hosts: [x, z], http: {paths: [" + whole("rev") + "]}}]"},
			"x [] {} 100%>10.96.0.7:80\nz [] {} 100%>a/rev\n", "o1 HostTaken: the host x belongs to the ingress a/o0"},

		"by way of ourselves": {[]string{
			one("vanity.org", "{rewriteHost: b.a.svc.cluster.local, appendHeaders: {via: vanity}, splits: ["+split("self", 100)+"]}"),
			"rules: [{hosts: [b.a.svc.cluster.local], visibility: ClusterLocal, http: {paths: [{headers: {tag: {exact: new}}, splits: [" + split("rev-2", 100) + "]}, {splits: [" + split("rev-1", 80) + ", " + split("rev-2", 20) + "]}]}}]"},
			"b.a.svc.cluster.local internal [] {Tag=new} 100%>a/rev-2\nb.a.svc.cluster.local internal [] {} 80%>a/rev-1 20%>a/rev-2\n" +
				"vanity.org [] {Tag=new} as b.a.svc.cluster.local +Via=vanity 100%>a/rev-2\nvanity.org [] {} as b.a.svc.cluster.local +Via=vanity " +
				"80%>a/rev-1 20%>a/rev-2\n", ""},
		"by way of ourselves, what is given there counts": {[]string{
			one("v", "{rewriteHost: b, appendHeaders: {tag: new}, splits: ["+split("front", 100)+"]}"),
			one("b", "{headers: {tag: {exact: old}}, splits: ["+split("rev-1", 100)+"]}", "{headers: {tag: {exact: new}}, splits: ["+split("rev-2", 100)+"]}")},
			"b [] {Tag=old} 100%>a/rev-1\nb [] {Tag=new} 100%>a/rev-2\nv [] {} as b +Tag=new 100%>a/rev-2\n", ""},
		"by way of ourselves, parts of it": {[]string{
			one("v", "{path: /a, rewriteHost: b, splits: ["+split("self", 100)+"]}", "{headers: {tag: {exact: new}}, rewriteHost: b, splits: ["+split("self", 100)+"]}", whole("web")),
			one("b", "{path: /a/b, splits: ["+split("rev-1", 100)+"]}", "{path: /c, headers: {tag: {exact: old}}, splits: ["+split("rev-2", 100)+"]}", whole("rev-3"))},
			"b [/a/b] {} 100%>a/rev-1\nb [/c] {Tag=old} 100%>a/rev-2\nb [] {} 100%>a/rev-3\n" +
				"v [/a/b] {Tag=new} as b 100%>a/rev-1\nv [/a/b] {} as b 100%>a/rev-1\nv [/a] {} as b 100%>a/rev-3\n" +
				"v [] {Tag=new} as b 100%>a/rev-3\nv [] {} 100%>10.96.0.7:80\n", ""},
		"by way of two": {[]string{
			one("w", "{rewriteHost: v, splits: ["+split("self", 100)+"]}"), one("v", "{rewriteHost: b, splits: ["+split("self", 100)+"]}"), one("b", whole("rev"))},
			"b [] {} 100%>a/rev\nv [] {} as b 100%>a/rev\nw [] {} as b 100%>a/rev\n", ""},
		"to an unknown host": {[]string{one("v", "{rewriteHost: b, splits: ["+split("self", 100)+"]}")},
			"", "o0 ServiceMissing: leads to b, which no ingress has"},
		"in a circle": {[]string{
			one("v", "{rewriteHost: w, splits: ["+split("self", 100)+"]}"), one("w", "{rewriteHost: v, splits: ["+split("self", 100)+"]}", "{path: /b, splits: ["+split("rev", 100)+"]}")},
			"v [/b] {} as w 100%>a/rev\nw [/b] {} 100%>a/rev\n", "o1 Circle: the host w leads to v and back"},
		"to itself":                  {[]string{one("v", "{rewriteHost: v, splits: ["+split("self", 100)+"]}")}, "", "o0 Circle: leads to v and back"},
		"to itself, with its name":   {[]string{one("v", whole("self"))}, "", "o0 Circle: leads back to the ingress"},
		"to itself, a share":         {[]string{one("v", "{rewriteHost: b, splits: ["+split("self", 50)+", "+split("web", 50)+"]}"), one("b", whole("web"))}, "b [] {} 100%>10.96.0.7:80\n", "o0 Circle: leads back to the ingress"},
		"by way of ourselves, by ip": {[]string{one("v", "{rewriteHost: b, splits: ["+split("web", 100)+"]}"), one("b", whole("web"))}, "b [] {} 100%>10.96.0.7:80\nv [] {} as b 100%>10.96.0.7:80\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var all []*v1alpha1.Ingress
			for i, spec := range c.specs {
				all = append(all, object(t, fmt.Sprintf("o%d", i), spec))
			}
			table, problems := Compile(all, world())
			if got := shown(table, false); got != c.want {
				t.Errorf("the table is\n%swant\n%s", got, c.want)
			}
			var got []string
			for name, p := range problems {
				got = append(got, fmt.Sprintf("%s %s: %s", name.Name, p.Reason, p.Message))
			}
			if c.wrong == "" && len(got) == 0 {
				return
			}
			head, tail, _ := strings.Cut(c.wrong, ": ")
			if len(got) != 1 || !strings.HasPrefix(got[0], head+": ") || !strings.Contains(got[0], tail) {
				t.Errorf("problems are %q, want %q", got, c.wrong)
			}
		})
	}
}

// TestCompileProbes: a probe for the hash of the routes matches first; otherwise the path
// is the same.
func TestCompileProbes(t *testing.T) {
	in := object(t, "o", one("x", "{path: /a, appendHeaders: {k: v}, splits: ["+split("web", 100)+"]}",
		"{headers: {tag: {exact: new}}, splits: ["+split("rev", 100)+"]}"))
	before := in.DeepCopy()
	sum, err := kingress.ComputeHash(in)
	if err != nil {
		t.Fatal(err)
	}
	table, problems := Compile([]*v1alpha1.Ingress{in}, world())
	hash := fmt.Sprintf("%x", sum)
	want := "x [/a] {K-Network-Hash=override} +K=v,K-Network-Hash=" + hash + " 100%>10.96.0.7:80\n" +
		"x [/a] {} +K=v 100%>10.96.0.7:80\n" +
		"x [] {K-Network-Hash=override,Tag=new} +K-Network-Hash=" + hash + " 100%>a/rev\n" +
		"x [] {Tag=new} 100%>a/rev\n"
	if got := shown(table, true); got != want || len(problems) != 0 {
		t.Errorf("the table is\n%swant\n%s%v", got, want, problems)
	}
	if !reflect.DeepEqual(before, in) {
		t.Error("the object was changed")
	}

	// A probe of another host that is rewritten to this one gets that host's hash.
	vanity := object(t, "v", one("v", "{rewriteHost: x, splits: ["+split("self", 100)+"]}"))
	sum, err = kingress.ComputeHash(vanity)
	if err != nil {
		t.Fatal(err)
	}
	table, _ = Compile([]*v1alpha1.Ingress{in, vanity}, world())
	got := table.Hosts[0].Paths
	if table.Hosts[0].Name == "x" {
		got = table.Hosts[1].Paths
	}
	if len(got) == 0 || got[0].Headers["K-Network-Hash"] != "override" || got[0].Append["K-Network-Hash"] != fmt.Sprintf("%x", sum) {
		t.Errorf("a probe of v takes %+v", got)
	}
}

func TestCompileModels(t *testing.T) {
	rule := func(paths ...string) string {
		return "rules: [{hosts: [m.a, m.a.svc, m.a.svc.cluster.local], visibility: ClusterLocal, http: {paths: [" + strings.Join(paths, ", ") +
			"]}}]"
	}
	canary := "{splits: [" + split("rev-1", 80) + ", " + split("rev-2", 20) + "]}"
	for name, c := range map[string]struct {
		in   *v1alpha1.Ingress
		want string
	}{
		"a route":                  {route(object(t, "m", rule(canary)), "m"), "model a/m 80%>a/rev-1 20%>a/rev-2\n"},
		"what needs a tag is not":  {route(object(t, "m", rule("{headers: {tag: {exact: x}}, splits: ["+split("rev-3", 100)+"]}", "{path: /acme, splits: ["+split("rev-4", 100)+"]}", canary)), "m"), "model a/m 80%>a/rev-1 20%>a/rev-2\n"},
		"no route":                 {object(t, "m", rule(canary)), ""},
		"a tag's rule":             {route(object(t, "m", one("tag-m.a.svc.cluster.local", canary)), "m"), ""},
		"a share of another class": {route(object(t, "m", rule("{splits: ["+split("rev-1", 80)+", "+split("web", 20)+"]}")), "m"), ""},
		"all of another class":     {route(object(t, "m", rule("{splits: ["+split("web", 100)+"]}")), "m"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			table, problems := Compile([]*v1alpha1.Ingress{c.in}, world())
			table.Hosts = nil
			if got := shown(table, false); got != c.want || len(problems) != 0 {
				t.Errorf("got %swant %s%v", got, c.want, problems)
			}
		})
	}
}

// TestCompileOthers: objects of other classes and deleted ones are left out.
func TestCompileOthers(t *testing.T) {
	spec := one("x", "{splits: ["+split("web", 100)+"]}")
	none, other, going := object(t, "none", spec), object(t, "other", spec), object(t, "going", spec)
	none.Annotations = nil
	other.Annotations[netapi.IngressClassAnnotationKey] = "edge.ingress.networking.knative.dev"
	now := metav1.Now()
	going.DeletionTimestamp = &now
	table, problems := Compile([]*v1alpha1.Ingress{none, other, going}, world())
	if len(table.Hosts) != 0 || len(problems) != 0 {
		t.Errorf("got %v, %v", table, problems)
	}
	// The oldest object owns the host, in any order of the list.
	young, old := object(t, "a-young", spec), object(t, "z-old", one("x", "{splits: ["+split("rev", 100)+"]}"))
	old.CreationTimestamp = metav1.NewTime(young.CreationTimestamp.Add(-time.Second))
	for _, all := range [][]*v1alpha1.Ingress{{young, old}, {old, young}} {
		table, problems := Compile(all, world())
		if got := shown(table, false); got != "x [] {} 100%>a/rev\n" || problems[types.NamespacedName{Namespace: "a", Name: "a-young"}] == nil {
			t.Errorf("got %s%v", got, problems)
		}
	}
}

// TestCompileInvariants: for any objects the compiled table is valid and does not depend on
// their order.
func TestCompileInvariants(t *testing.T) {
	paths, wrong := 0, map[string]int{}
	for seed := range uint64(300) {
		dice := rand.New(rand.NewPCG(seed, 7))
		pick := func(of ...string) string { return of[dice.IntN(len(of))] }
		some := func(most int, f func() string) string {
			var out []string
			for range 1 + dice.IntN(most) {
				out = append(out, f())
			}
			return strings.Join(out, ", ")
		}
		host := func() string { return pick("v", "w", "x", "z", "X", "x.a.svc", "x.b.svc", `"*"`) }
		path := func() string {
			a, b := pick("80", "50", "0"), pick("20", "50", "100")
			splits := "{serviceNamespace: a, serviceName: " + pick("web", "rev", "rev-2", "two", "none", "out", "self", "front", "new") +
				", servicePort: " + pick("80", "81", "http") + "}"
			if dice.IntN(3) == 0 {
				splits = fmt.Sprintf("{serviceNamespace: a, serviceName: web, servicePort: 80, percent: %s}, {serviceNamespace: a, serviceName: %s, "+
					"servicePort: 80, percent: %s}", a, pick("rev", "self", "none"), b)
			}
			return "{" + pick("", "path: /a, ", "path: /a/b, ", "path: b, ") +
				pick("", "", "rewriteHost: v, ", "rewriteHost: w, ", "rewriteHost: x, ") +
				pick("", "headers: {t: {exact: n}}, ", "headers: {t: {exact: m}}, ") + pick("", "appendHeaders: {t: n}, ") + "splits: [" + splits + "]}"
		}
		var all []*v1alpha1.Ingress
		for i := range 6 {
			all = append(all, object(t, fmt.Sprintf("o%d", i), "httpOption: "+pick("Enabled", "Redirected")+"\nrules: ["+some(2, func() string {
				return "{hosts: [" + some(2, host) + "], visibility: " + pick("ExternalIP", "ClusterLocal") + ", http: {paths: [" + some(3, path) +
					"]}}"
			})+"]"))
		}
		table, problems := Compile(all, world())
		for i, h := range table.Hosts {
			if h.Name == "" || h.Name != strings.ToLower(h.Name) || i > 0 && compareKeys(keyOf(h), keyOf(table.Hosts[i-1])) <= 0 {
				t.Errorf("seed %d: host %d is called %q", seed, i, h.Name)
			}
			paths += len(h.Paths)
			for _, p := range h.Paths {
				sum := 0
				for _, s := range p.Splits {
					sum += s.Percent
					if (s.Function == (functions.Name{})) == (s.Address == "") || s.Percent < 1 {
						t.Errorf("seed %d: %s leads to %+v", seed, h.Name, s)
					}
					if at, _, err := net.SplitHostPort(s.Address); s.Address != "" && (err != nil || at == public || at == private) {
						t.Errorf("seed %d: %s leads to %q: %v", seed, h.Name, s.Address, err)
					}
				}
				if sum != 100 {
					t.Errorf("seed %d: shares of %s add up to %d: %v", seed, h.Name, sum, problems)
				}
			}
		}
		for _, p := range problems {
			wrong[p.Reason]++
		}
		dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		again, other := Compile(all, world())
		if !reflect.DeepEqual(table, again) || !reflect.DeepEqual(problems, other) {
			t.Errorf("seed %d: in another order it is\n%s%v\nand was\n%s%v", seed, shown(again, true), other, shown(table, true), problems)
		}
	}
	if paths < 1000 || wrong[reasonInvalid] < 20 || wrong[reasonHostTaken] < 20 || wrong[reasonCircle] < 20 || wrong[reasonService] < 20 {
		t.Errorf("the objects were not of all sorts: %d paths, %v", paths, wrong)
	}
}
