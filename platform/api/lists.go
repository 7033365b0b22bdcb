package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/api/live"
)

// sharedLists are the lists that are watched, by team and name.
type sharedLists struct {
	mu   sync.Mutex
	byID map[[2]string]*live.List
}

// watchable are the lists that one answer may have.
func (a *API) watchable() map[string]func(*exchange) ([]live.Item, *openai.Error) {
	known := map[string]func(*exchange) ([]live.Item, *openai.Error){
		"functions":  itemsOf(a.functions, func(f Function) string { return f.Name }),
		"replicas":   itemsOf(a.replicas, func(r functions.Replica) string { return r.ID }),
		"nodes":      itemsOf(a.nodes, func(n Node) string { return n.ID }),
		"coldstarts": itemsOf(a.coldStarts, func(c ColdStart) string { return c.ID }),
		"events":     itemsOf(a.events, func(functions.Event) string { return "" }),
	}
	if a.o.Decisions != nil {
		known["routes"] = itemsOf(a.decisions, func(r functions.RouteRecord) string { return r.ID })
	}
	return known
}

func itemsOf[T any](get func(*exchange) ([]T, *openai.Error), key func(T) string) func(*exchange) ([]live.Item, *openai.Error) {
	return func(x *exchange) ([]live.Item, *openai.Error) {
		list, err := get(x)
		items := make([]live.Item, 0, len(list))
		for i := range list {
			if b, err := json.Marshal(list[i]); err == nil {
				items = append(items, live.Item{Key: key(list[i]), JSON: b})
			}
		}
		return items, err
	}
}

// sharedList is the list that all readers of a team share; team "" sees everything.
func (a *API) sharedList(team, name string) *live.List {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	id := [2]string{team, name}
	if l := a.shared.byID[id]; l != nil {
		return l
	}
	get, x := a.watchable()[name], &exchange{}
	if team != "" {
		x.caller = caller{id: auth.Identity{Team: team}, authenticated: true}
	}
	l := live.New(name, func() []live.Item { items, _ := get(x); return items }, time.Now)
	a.shared.byID[id] = l
	return l
}

// Lists are several lists; those that were not asked for are absent.
type Lists struct {
	Functions  []Function              `json:"functions,omitempty"`
	Replicas   []functions.Replica     `json:"replicas,omitempty"`
	Nodes      []Node                  `json:"nodes,omitempty"`
	ColdStarts []ColdStart             `json:"coldstarts,omitempty"`
	Events     []functions.Event       `json:"events,omitempty"`
	Routes     []functions.RouteRecord `json:"routes,omitempty"`
}

func (a *API) lists(x *exchange, res *httpserver.Response) *openai.Error {
	known := a.watchable()
	names := slices.Sorted(maps.Keys(known))
	if of, ok := x.query["of"]; ok {
		names = strings.Split(of, ",")
		slices.Sort(names)
	}
	answer := map[string][]json.RawMessage{}
	for i, name := range names {
		if known[name] == nil || i > 0 && names[i-1] == name {
			return openai.New(openai.InvalidValue,
				"of names lists with commas, each once: "+strings.Join(slices.Sorted(maps.Keys(known)), ", ")+".").With("of")
		}
		if x.query.on("watch") {
			continue
		}
		items, err := known[name](x)
		if err != nil {
			return err
		}
		answer[name] = []json.RawMessage{}
		for _, it := range items {
			answer[name] = append(answer[name], it.JSON)
		}
	}
	if !x.query.on("watch") {
		return writeJSON(res, answer)
	}
	watchers := functions.ConvertAll(names, func(name string) *live.Watcher { return a.sharedList(x.team(), name).Watch() })
	look := func(b []byte) ([]byte, bool) {
		for _, w := range watchers {
			b = w.Append(b)
		}
		return b, true
	}
	s := a.stream(x, res, look)
	s.buf, _ = look(nil)
	s.closed = func() {
		for _, w := range watchers {
			w.Close()
		}
	}
	return nil
}
