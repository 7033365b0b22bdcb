package api

import (
	"cmp"
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

// list is one list of the API. key names an item; items whose key is "" are never removed nor
// changed (events).
type list[T any] struct {
	streams *streams
	get     func(*exchange) ([]T, *openai.Error)
	key     func(T) string
}

// serve answers the list, or watches it.
func (l list[T]) serve(x *exchange, res *httpserver.Response) *openai.Error {
	if !x.query.on("watch") {
		return reply(func(x *exchange) (List[T], *openai.Error) { items, err := l.get(x); return List[T]{items}, err })(x, res)
	}
	var failed *openai.Error
	changes := live.New("", func() (items []live.Item) { items, failed = l.items(x); return items }, time.Now).Watch()
	look := func(b []byte) ([]byte, bool) { b = changes.Append(b); return b, failed == nil }
	first, ok := look(nil)
	if !ok {
		return failed
	}
	l.streams.open(x, res, look).buf = first
	return nil
}

// one is a handler that answers with the item that the path names; noun is for the error.
func (l list[T]) one(noun string) handler {
	return reply(func(x *exchange) (none T, err *openai.Error) {
		items, err := l.get(x)
		if i := slices.IndexFunc(items, func(v T) bool { return l.key(v) == x.args[0] }); i >= 0 {
			return items[i], err
		}
		return none, cmp.Or(err, notFound(noun+x.args[0]))
	})
}

// itemReader reads a list as the caller may see it.
type itemReader = func(*exchange) ([]live.Item, *openai.Error)

func (l list[T]) items(x *exchange) ([]live.Item, *openai.Error) {
	all, err := l.get(x)
	items := make([]live.Item, 0, len(all))
	for i := range all {
		if b, err := json.Marshal(all[i]); err == nil {
			items = append(items, live.Item{Key: l.key(all[i]), JSON: b})
		}
	}
	return items, err
}

// listsHandlers answers with several lists at once.
type listsHandlers struct {
	streams *streams
	readers map[string]itemReader
	mu      sync.Mutex
	shared  map[[2]string]*live.List // those that are watched, by team and name
}

// sharedList is the list that all readers of a team share; team "" sees everything.
func (l *listsHandlers) sharedList(team, name string) *live.List {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := [2]string{team, name}
	if known := l.shared[id]; known != nil {
		return known
	}
	get, x := l.readers[name], &exchange{}
	if team != "" {
		x.caller = caller{id: auth.Identity{Team: team}, authenticated: true}
	}
	l.shared[id] = live.New(name, func() []live.Item { items, _ := get(x); return items }, time.Now)
	return l.shared[id]
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

func (l *listsHandlers) serve(x *exchange, res *httpserver.Response) *openai.Error {
	names := slices.Sorted(maps.Keys(l.readers))
	if of, ok := x.query["of"]; ok {
		names = strings.Split(of, ",")
		slices.Sort(names)
	}
	answer := map[string][]json.RawMessage{}
	for i, name := range names {
		if l.readers[name] == nil || i > 0 && names[i-1] == name {
			return openai.New(openai.InvalidValue,
				"of names lists with commas, each once: "+strings.Join(slices.Sorted(maps.Keys(l.readers)), ", ")+".").With("of")
		}
		if x.query.on("watch") {
			continue
		}
		items, err := l.readers[name](x)
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
	watchers := functions.ConvertAll(names, func(name string) *live.Watcher { return l.sharedList(x.team(), name).Watch() })
	look := func(b []byte) ([]byte, bool) {
		for _, w := range watchers {
			b = w.Append(b)
		}
		return b, true
	}
	s := l.streams.open(x, res, look)
	s.buf, _ = look(nil)
	s.closed = func() {
		for _, w := range watchers {
			w.Close()
		}
	}
	return nil
}
