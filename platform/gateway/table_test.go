package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

func compiled(hosts ...controlstream.Host) *table {
	return compileTable(&controlstream.Table{Hosts: hosts},
		func(functions.Name) httpserver.Handler { return func(*httpserver.Request, *httpserver.Response) {} })
}

func splitTo(addr string) []controlstream.Split {
	return []controlstream.Split{{Percent: 100, Address: addr}}
}

func TestRules(t *testing.T) {
	tab := compiled(
		controlstream.Host{Name: "a.example.com", Paths: []controlstream.Path{
			{Prefix: "/foo/bar", Splits: splitTo("bar")},
			{Prefix: "/foo", Headers: map[string]string{"X-Tag": "t", "X-More": "m"}, Splits: splitTo("more")},
			{Prefix: "/foo", Headers: map[string]string{"X-Tag": "t"}, Splits: splitTo("tagged")},
			{Prefix: "/foo", Splits: splitTo("foo")},
			{Splits: splitTo("all")},
		}},
		controlstream.Host{Name: "only.example.com", Paths: []controlstream.Path{{Prefix: "/x", Splits: splitTo("x")}}},
		controlstream.Host{Name: "in.ns.svc", Internal: true, Paths: []controlstream.Path{{Splits: splitTo("in")}}},
		controlstream.Host{Name: "llama.io", Paths: []controlstream.Path{{Splits: splitTo("domain")}}},
		controlstream.Host{Name: "llama.io", Internal: true, Paths: []controlstream.Path{{Splits: splitTo("service")}}},
	)
	head := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Add(kv[i], kv[i+1])
		}
		return h
	}
	for _, c := range []struct {
		host, path string
		head       http.Header
		private    bool
		want       string // "": no host; "-": no rule
	}{
		{"llama.io", "/", nil, false, "domain"}, // the service llama of a namespace io takes no domain
		{"llama.io", "/", nil, true, "service"},
		{"a.example.com", "/", nil, true, "all"},
		{"a.example.com", "/", nil, false, "all"},
		{"a.example.com", "/fo", nil, false, "all"},
		{"a.example.com", "/foo", nil, false, "foo"},
		{"a.example.com", "/foobar", nil, false, "foo"}, // a literal prefix, as in Knative
		{"a.example.com", "/foo/bar/x", nil, false, "bar"},
		{"a.example.com", "/foo/bar", head("X-Tag", "t"), false, "bar"}, // the longer prefix comes first
		{"a.example.com", "/foo", head("X-Tag", "t"), false, "tagged"},
		{"a.example.com", "/foo", head("X-Tag", "T"), false, "foo"},
		{"a.example.com", "/foo", head("X-Tag", ""), false, "foo"},
		{"a.example.com", "/foo", head("X-Tag", "t", "X-More", "m"), false, "more"},
		{"only.example.com", "/", nil, false, "-"},
		{"only.example.com", "/xy", nil, true, "x"},
		{"in.ns.svc", "/", nil, false, ""},
		{"in.ns.svc", "/", nil, true, "in"},
		{"unknown", "/", nil, true, ""},
	} {
		got := ""
		if h := tab.findHost(c.host, c.private); h != nil {
			got = "-"
			if r := h.match(c.path, c.head); r != nil {
				got = r.draw(nil).Address
			}
		}
		if got != c.want {
			t.Errorf("%s%s %v: %q, want %q", c.host, c.path, c.head, got, c.want)
		}
	}
}

func TestSet(t *testing.T) {
	tab := compiled(controlstream.Host{Name: "a", Paths: []controlstream.Path{{Prefix: "/none"}, {
		Append: map[string]string{"X-One": "path", "X-Two": "path", "K-Network-Hash": "abc"},
		Splits: []controlstream.Split{{Address: "x", Append: map[string]string{"X-One": "split"}}},
	}}})
	s := tab.findHost("a", false).match("/", nil).draw(nil)
	got := map[string]string{}
	for _, f := range s.set {
		got[f.name] = f.value
	}
	if fmt.Sprint(got) != "map[X-One:split X-Two:path]" || s.hash != "abc" {
		t.Errorf("%v %q", got, s.hash)
	}
	if tab.findHost("a", false).match("/none", nil).draw(nil) != nil {
		t.Error("a rule without splits leads nowhere")
	}
}

// TestShares: 20,000 draws of 80/15/5 are within four standard deviations.
func TestShares(t *testing.T) {
	tab := compiled(controlstream.Host{Name: "a", Paths: []controlstream.Path{{Splits: []controlstream.Split{
		{Percent: 80, Address: "x"}, {Percent: 15, Address: "y"}, {Percent: 5, Address: "z"},
	}}}})
	rule := tab.findHost("a", false).match("/", nil)
	random := rand.New(rand.NewPCG(1, 2))
	const n = 20000
	got := map[string]int{}
	for range n {
		got[rule.draw(random.IntN).Address]++
	}
	for addr, p := range map[string]float64{"x": .80, "y": .15, "z": .05} {
		if d := float64(got[addr]) - n*p; d*d > 16*n*p*(1-p) {
			t.Errorf("%s: %d of %d", addr, got[addr], n)
		}
	}
}

func TestHostname(t *testing.T) {
	for in, want := range map[string]string{
		"a.b": "a.b", "A.b:80": "a.b", "a.b.": "a.b", "a.b.:80": "a.b", "": "", "[::1]": "[::1]", "[::1]:80": "[::1]", "a:": "a", ":80": "",
	} {
		if got := hostname(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestAliases(t *testing.T) {
	got := aliases(&controlstream.Table{Models: []controlstream.Model{{Name: functionName("a/m"), Splits: []controlstream.Split{
		{Percent: 80, Function: functionName("a/m-1")}, {Percent: 20, Function: functionName("a/m-2")}, {Percent: 5, Address: "no function"},
	}}}})
	want := []activator.Alias{{Name: functionName("a/m"), Shares: []activator.Share{{Function: functionName("a/m-1"), Percent: 80}, {Function: functionName("a/m-2"), Percent: 20}}}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v", got)
	}
}

func FuzzHost(f *testing.F) {
	tab := compiled(controlstream.Host{Name: "a.example.com", Paths: []controlstream.Path{{Prefix: "/x", Splits: splitTo("x")}}})
	f.Add("a.example.com:80", "/x", "v")
	f.Add("[::1", "", "")
	f.Fuzz(func(t *testing.T, host, path, value string) {
		if h := tab.findHost(hostname(host), false); h != nil {
			if r := h.match(path, http.Header{"X": {value}}); r != nil && r.draw(nil).Address != "x" {
				t.Error("another rule")
			}
		}
	})
}

func BenchmarkRoute(b *testing.B) {
	var hosts []controlstream.Host
	for i := range 1000 {
		hosts = append(hosts, controlstream.Host{Name: fmt.Sprintf("m%d.ns.example.com", i), Paths: []controlstream.Path{{Splits: []controlstream.Split{{Percent: 80, Address: "x"}, {Percent: 20, Address: "y"}}}}})
	}
	tab := compiled(hosts...)
	head := http.Header{"X-Tag": {"t"}}
	b.ReportAllocs()
	for b.Loop() {
		if tab.findHost(hostname("m777.ns.example.com:8080"), false).match("/v1/x", head).draw(rand.IntN) == nil {
			b.Fatal()
		}
	}
}
