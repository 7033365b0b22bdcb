// Package live lets many watchers follow a list: it reads and compares the list at most every 100
// ms, once for all, and appends the changes as lines of JSON to the bytes that a watcher's caller
// sends, or the whole list for one too far behind; it does no I/O and starts no goroutine.
package live

import (
	"encoding/json"
	"sync"
	"time"
)

// Line is one change of a list. A reset is followed by all items and by synced.
type Line struct {
	List  string          `json:"list,omitempty"`
	Event string          `json:"event"` // reset, put, removed, synced
	Item  json.RawMessage `json:"item,omitempty"`
	Name  string          `json:"name,omitempty"`
}

// Item is one item of a list. One without a key is never changed nor removed.
type Item struct {
	Key  string
	JSON []byte
}

const (
	// leastGap is between two looks at a list at least: changes come in bursts.
	leastGap = 100 * time.Millisecond
	// shareOfTime bounds what looking at a list takes: one part in so many.
	shareOfTime = 25
	// keptLines is how many changes are kept. A watcher that is further behind gets the
	// whole list again.
	keptLines = 2048
)

// List is a list and its newest changes. Its methods may be called concurrently.
type List struct {
	name string
	read func() []Item
	now  func() time.Time

	mu       sync.Mutex
	watchers int
	known    map[string]*known
	order    []*known // as read last
	looks    uint64
	next     time.Time // no look before
	lines    [][]byte  // a ring
	count    uint64    // lines ever written
}

type known struct {
	json []byte
	key  string
	look uint64 // the last one that saw it
}

// New makes a list. read is called by one watcher at a time. One without a name has no reset
// in its lines.
func New(name string, read func() []Item, now func() time.Time) *List {
	return &List{name: name, read: read, now: now}
}

// Watcher follows a list. It belongs to one goroutine.
type Watcher struct {
	l      *List
	at     uint64 // lines that it has had
	begun  bool
	closed bool
}

func (l *List) Watch() *Watcher {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers++
	return &Watcher{l: l}
}

// Close ends the watcher; the last one frees what the list holds.
func (w *Watcher) Close() {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	if l.watchers--; l.watchers == 0 {
		l.known, l.order, l.lines, l.count, l.next = nil, nil, nil, 0, time.Time{}
	}
}

// Append looks at the list, if it is time to, and appends what the watcher does not know
// yet to b, as lines of JSON.
func (w *Watcher) Append(b []byte) []byte {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look()
	if !w.begun || l.count-w.at > uint64(len(l.lines)) {
		w.begun, w.at = true, l.count
		return l.appendWhole(b)
	}
	for ; w.at < l.count; w.at++ {
		b = append(b, l.lines[w.at%keptLines]...)
	}
	return b
}

// look reads the list and writes a line for each difference.
func (l *List) look() {
	began := l.now()
	if began.Before(l.next) {
		return
	}
	items := l.read()
	first := l.known == nil
	if first {
		l.known = make(map[string]*known, len(items))
	}
	l.looks++
	l.order = l.order[:0]
	for _, it := range items {
		key := it.Key
		if key == "" {
			key = string(it.JSON)
		}
		k := l.known[key]
		if k == nil || string(k.json) != string(it.JSON) {
			k = &known{json: it.JSON, key: it.Key}
			l.known[key] = k
			if !first {
				l.write(Line{List: l.name, Event: "put", Item: it.JSON})
			}
		}
		k.look = l.looks
		l.order = append(l.order, k)
	}
	for key, k := range l.known {
		if k.look == l.looks {
			continue
		}
		delete(l.known, key)
		if k.key != "" { // an event that is no longer kept has not been undone
			l.write(Line{List: l.name, Event: "removed", Name: k.key})
		}
	}
	end := l.now()
	l.next = end.Add(max(leastGap, end.Sub(began)*shareOfTime))
}

func (l *List) write(line Line) {
	b := appendLine(nil, line)
	if len(l.lines) < keptLines {
		l.lines = append(l.lines, b)
	} else {
		l.lines[l.count%keptLines] = b
	}
	l.count++
}

func (l *List) appendWhole(b []byte) []byte {
	if l.name != "" {
		b = appendLine(b, Line{List: l.name, Event: "reset"})
	}
	for _, k := range l.order {
		b = appendLine(b, Line{List: l.name, Event: "put", Item: k.json})
	}
	return appendLine(b, Line{List: l.name, Event: "synced"})
}

func appendLine(b []byte, line Line) []byte {
	text, err := json.Marshal(line)
	if err != nil {
		return b // the items of the API are JSON
	}
	return append(append(b, text...), '\n')
}
