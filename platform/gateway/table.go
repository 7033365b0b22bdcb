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

// table is a controlstream.Table made ready for lookups: a map of hosts, and of each the
// rules in the order in which they are tried.
type table struct {
	version uint64
	hosts   map[string]*host
}

type host struct {
	name     string
	internal bool
	secure   bool
	rules    []rule
}

// rule is one path of a host.
type rule struct {
	prefix  string
	headers []field // all of which the request has
	rewrite string
	splits  []split
	sum     int // of the weights
}

type field struct{ name, value string }

// split is where a share of a rule's requests goes.
type split struct {
	weight   int
	function functions.Name // or the zero Name
	address  string
	h2c      bool
	set      []field // header fields that the request goes on with
	hash     string  // the answer to a probe that asks for it
	serve    httpserver.Handler
}

const hashField = "K-Network-Hash"

// compileTable makes a table ready. serve makes what answers the calls of OpenAI's API
// that come for a function by host.
func compileTable(t *controlstream.Table, serve func(functions.Name) httpserver.Handler) *table {
	out := &table{hosts: map[string]*host{}}
	if t == nil {
		return out
	}
	out.version = t.Version
	for i := range t.Hosts {
		from := &t.Hosts[i]
		h := &host{name: from.Name, internal: from.Internal, secure: from.Secure, rules: make([]rule, 0, len(from.Paths))}
		for j := range from.Paths {
			h.rules = append(h.rules, compileRule(&from.Paths[j], serve))
		}
		// The longest prefix first, and of those the one that asks for most: as
		// Knative wants it, whatever order they came in.
		slices.SortStableFunc(h.rules, func(a, b rule) int {
			return cmp.Or(cmp.Compare(len(b.prefix), len(a.prefix)), cmp.Compare(len(b.headers), len(a.headers)))
		})
		out.hosts[strings.ToLower(from.Name)] = h
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
		for _, m := range []map[string]string{p.Append, s.Append} { // of the same name the split's
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

// findHost is the host of that name as a request has it; nil where there is none, or
// none on this listener.
func (t *table) findHost(name string, private bool) *host {
	h := t.hosts[name]
	if h == nil || h.internal && !private {
		return nil
	}
	return h
}

// match is the rule for a path and the fields of a head; nil where none fits.
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

// draw is where a request goes, by weight; nil where the rule leads nowhere.
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

// hostname is a Host as the table has it: in lower case, without a port and a
// final dot.
func hostname(s string) string {
	if i := strings.LastIndexByte(s, ':'); i >= 0 && strings.IndexByte(s[i:], ']') < 0 {
		s = s[:i]
	}
	s = strings.TrimSuffix(s, ".")
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= 'A' && c <= 'Z' {
			return strings.ToLower(s)
		}
	}
	return s
}

// aliases are the names of OpenAI's field model.
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
