package gateway

import (
	"maps"
	"strings"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// table is a controlstream.Table compiled for lookups: a map of hosts, each with its rules
// in matching order, which is that of the table.
type table struct {
	hosts    map[string]*host // external, which both listeners serve
	internal map[string]*host // cluster-local, which only the private one serves, and before an external host of the name
}

type host struct {
	*controlstream.Host
	rules []rule
}

type rule struct {
	*controlstream.Path
	headers []field // all must match
	splits  []split
	sum     int // of the splits' percents
}

type field struct{ name, value string }

// split is one share of a rule's requests.
type split struct {
	*controlstream.Split
	set   []field // header fields to set
	hash  string  // the hash with which probes of this route are answered
	serve httpserver.Handler
}

const hashField = "K-Network-Hash"

// compileTable compiles a table. serve returns the handler of a function's OpenAI API
// calls that were routed by host.
func compileTable(t *controlstream.Table, serve func(functions.Name) httpserver.Handler) *table {
	out := &table{hosts: map[string]*host{}, internal: map[string]*host{}}
	for i := range t.Hosts {
		h := &host{Host: &t.Hosts[i]}
		for j := range h.Paths {
			h.rules = append(h.rules, compileRule(&h.Paths[j], serve))
		}
		if h.Internal {
			out.internal[h.Name] = h
		} else {
			out.hosts[h.Name] = h
		}
	}
	return out
}

func compileRule(p *controlstream.Path, serve func(functions.Name) httpserver.Handler) rule {
	r := rule{Path: p, headers: fieldsOf(p.Headers)}
	for i := range p.Splits {
		s := split{Split: &p.Splits[i]}
		set := map[string]string{}
		maps.Copy(set, p.Append)
		maps.Copy(set, s.Append) // a split's field replaces the path's
		s.hash = set[hashField]
		delete(set, hashField)
		s.set = fieldsOf(set)
		if s.Function != (functions.Name{}) {
			s.serve = serve(s.Function)
		}
		r.splits = append(r.splits, s)
		r.sum += s.Percent
	}
	return r
}

func fieldsOf(m map[string]string) (list []field) {
	for name, value := range m {
		list = append(list, field{name, value})
	}
	return list
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
		if !strings.HasPrefix(path, r.Prefix) {
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

// draw picks a split at random by its percent; nil if the rule has none.
func (r *rule) draw(random func(int) int) *split {
	switch len(r.splits) {
	case 0:
		return nil
	case 1:
		return &r.splits[0]
	}
	n := random(r.sum)
	for i := range r.splits {
		if n -= r.splits[i].Percent; n < 0 {
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
