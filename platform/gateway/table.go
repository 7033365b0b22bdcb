package gateway

import (
	"cmp"
	"net/textproto"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// table is a controlstream.Table compiled for lookups: a map of hosts, each with its rules
// in matching order.
type table struct {
	version  uint64
	hosts    map[string]*host // external, which both listeners serve
	internal map[string]*host // cluster-local, which only the private one serves, and before an external host of the name
}

type host struct {
	name   string
	secure bool
	rules  []rule
}

type rule struct {
	prefix  string
	headers []field // all must match
	rewrite string
	splits  []split
	sum     int // of the splits' weights
}

type field struct{ name, value string }

// split is one share of a rule's requests.
type split struct {
	weight   int
	function functions.Name // the zero Name: Address is used
	address  string
	h2c      bool
	set      []field // header fields to set
	hash     string  // the hash with which probes of this route are answered
	serve    httpserver.Handler
}

const hashField = "K-Network-Hash"

// compileTable compiles a table; nil has no routes. serve returns the handler of a
// function's OpenAI API calls that were routed by host.
func compileTable(t *controlstream.Table, serve func(functions.Name) httpserver.Handler) *table {
	out := &table{hosts: map[string]*host{}, internal: map[string]*host{}}
	if t == nil {
		return out
	}
	out.version = t.Version
	for i := range t.Hosts {
		from := &t.Hosts[i]
		h := &host{name: from.Name, secure: from.Secure, rules: make([]rule, 0, len(from.Paths))}
		for j := range from.Paths {
			h.rules = append(h.rules, compileRule(&from.Paths[j], serve))
		}
		// The longest prefix first, then the most header conditions: Knative's order,
		// whatever the order in t.
		slices.SortStableFunc(h.rules, func(a, b rule) int {
			return cmp.Or(cmp.Compare(len(b.prefix), len(a.prefix)), cmp.Compare(len(b.headers), len(a.headers)))
		})
		if from.Internal {
			out.internal[strings.ToLower(from.Name)] = h
		} else {
			out.hosts[strings.ToLower(from.Name)] = h
		}
	}
	return out
}

func compileRule(p *controlstream.Path, serve func(functions.Name) httpserver.Handler) rule {
	r := rule{prefix: p.Prefix, rewrite: p.Rewrite}
	for name, value := range p.Headers {
		r.headers = append(r.headers, field{textproto.CanonicalMIMEHeaderKey(name), value})
	}
	for i := range p.Splits {
		s := &p.Splits[i]
		if s.Percent <= 0 && len(p.Splits) > 1 {
			continue
		}
		to := split{weight: max(s.Percent, 1), function: s.Function, address: s.Address, h2c: s.H2C}
		set := map[string]string{}
		for _, m := range []map[string]string{p.Append, s.Append} { // a split's field replaces the path's
			for name, value := range m {
				set[textproto.CanonicalMIMEHeaderKey(name)] = value
			}
		}
		for name, value := range set {
			if name == hashField {
				to.hash = value
				continue
			}
			to.set = append(to.set, field{name, value})
		}
		if to.function != (functions.Name{}) {
			to.serve = serve(to.function)
		}
		r.splits = append(r.splits, to)
		r.sum += to.weight
	}
	return r
}

// findHost returns the host of a name from hostname; nil if there is none, or none on this
// listener.
func (t *table) findHost(name string, private bool) *host {
	if private {
		if h := t.internal[name]; h != nil {
			return h
		}
	}
	return t.hosts[name]
}

// match returns the first rule for a path and a head; nil if none matches.
func (h *host) match(path string, head map[string][]string) *rule {
next:
	for i := range h.rules {
		r := &h.rules[i]
		if !strings.HasPrefix(path, r.prefix) {
			continue
		}
		for _, f := range r.headers {
			if v := head[f.name]; len(v) == 0 || v[0] != f.value {
				continue next
			}
		}
		return r
	}
	return nil
}

// draw picks a split at random by weight; nil if the rule has none.
func (r *rule) draw(random func(int) int) *split {
	switch len(r.splits) {
	case 0:
		return nil
	case 1:
		return &r.splits[0]
	}
	n := random(r.sum)
	for i := range r.splits {
		if n -= r.splits[i].weight; n < 0 {
			return &r.splits[i]
		}
	}
	return &r.splits[len(r.splits)-1]
}

// hostname normalises a Host field for the table: lower case, no port, no final dot.
func hostname(s string) string {
	if i := strings.LastIndexByte(s, ':'); i >= 0 && strings.IndexByte(s[i:], ']') < 0 {
		s = s[:i]
	}
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

func aliases(t *controlstream.Table) []activator.Alias {
	if t == nil {
		return nil
	}
	out := make([]activator.Alias, 0, len(t.Models))
	for i := range t.Models {
		m := &t.Models[i]
		a := activator.Alias{Name: m.Name}
		for _, s := range m.Splits {
			if s.Function != (functions.Name{}) {
				a.Shares = append(a.Shares, activator.Share{Function: s.Function, Percent: s.Percent})
			}
		}
		out = append(out, a)
	}
	return out
}
