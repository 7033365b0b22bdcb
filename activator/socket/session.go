package socket

import (
	"container/list"
	"encoding/json/jsontext"
	"sync"
	"time"
)

// sessionKey is whose session it is: a client of a key.
type sessionKey struct{ team, key, client string }

// session is what is remembered of a client. It is a value: two sockets of one client go
// on apart from each other.
type session struct {
	text     string
	messages jsontext.Value // in place of text; nil: there are none
	intent   string
	rule     string
}

func (s session) size() int { return sessionOverhead + len(s.text) + len(s.messages) }

const (
	sessionOverhead = 512
	sessionTTL      = 30 * time.Minute
)

// sessions is the memory of sessions: of the open sockets, and of those that have ended
// within sessionTTL. The least recently stored are forgotten beyond a bound of bytes.
type sessions struct {
	max int // bytes

	mu    sync.Mutex
	byKey map[sessionKey]*list.Element
	order list.List // of storedSession, oldest first
	bytes int
}

type storedSession struct {
	key sessionKey
	session
	at time.Time
}

// find returns the session of a client; the zero session where none is remembered.
func (m *sessions) find(k sessionKey, now time.Time) session {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(now)
	if e := m.byKey[k]; e != nil {
		return e.Value.(*storedSession).session
	}
	return session{}
}

// store remembers a session.
func (m *sessions) store(k sessionKey, s session, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.byKey[k]; e != nil {
		m.remove(e)
	}
	if m.byKey == nil {
		m.byKey = map[sessionKey]*list.Element{}
	}
	m.byKey[k] = m.order.PushBack(&storedSession{k, s, now})
	m.bytes += s.size()
	m.forget(now)
}

// forget drops what is too old or too much. mu must be held.
func (m *sessions) forget(now time.Time) {
	for e := m.order.Front(); e != nil; e = m.order.Front() {
		if m.bytes <= m.max && now.Sub(e.Value.(*storedSession).at) < sessionTTL {
			return
		}
		m.remove(e)
	}
}

func (m *sessions) remove(e *list.Element) {
	s := m.order.Remove(e).(*storedSession)
	delete(m.byKey, s.key)
	m.bytes -= s.size()
}
