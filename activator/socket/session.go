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
func (s *sessions) find(k sessionKey, now time.Time) session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(now)
	if e := s.byKey[k]; e != nil {
		return e.Value.(*storedSession).session
	}
	return session{}
}

func (s *sessions) store(k sessionKey, stored session, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[k]; e != nil {
		s.remove(e)
	}
	if s.byKey == nil {
		s.byKey = map[sessionKey]*list.Element{}
	}
	s.byKey[k] = s.order.PushBack(&storedSession{k, stored, now})
	s.bytes += stored.size()
	s.forget(now)
}

// forget drops what is too old or too much. mu must be held.
func (s *sessions) forget(now time.Time) {
	for e := s.order.Front(); e != nil; e = s.order.Front() {
		if s.bytes <= s.max && now.Sub(e.Value.(*storedSession).at) < sessionTTL {
			return
		}
		s.remove(e)
	}
}

func (s *sessions) remove(e *list.Element) {
	stored := s.order.Remove(e).(*storedSession)
	delete(s.byKey, stored.key)
	s.bytes -= stored.size()
}
