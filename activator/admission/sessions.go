package admission

import (
	"slices"
	"time"
)

const (
	maxSessions = 4096 // of each half of a memory
	sessionHalf = 15 * time.Minute
)

// Moved is why a session's request was given another replica than the session's last one.
type Moved string

const (
	NotMoved       Moved = ""
	MovedGone      Moved = "gone"      // it has ended or failed
	MovedSaturated Moved = "saturated" // it has no free slot, or is clearly busier than another
	MovedAdapter   Moved = "adapter"   // the request's adapter is not loaded there, but at another
)

// sessions remembers the replica that served each session last, whose engine has the
// session's KV cache. A session is forgotten between one and two sessionHalf after its last
// request, or sooner where there are more than maxSessions.
type sessions struct {
	recent, older map[uint64]string // id of the replica by affinity key
	turned        time.Time         // when recent was begun
}

// find returns the replica of a session; "" where none is remembered.
func (s *sessions) find(key uint64, now time.Time) (replica string) {
	s.turn(now)
	if id, ok := s.recent[key]; ok {
		return id
	}
	return s.older[key]
}

func (s *sessions) store(key uint64, replica string, now time.Time) {
	s.turn(now)
	if s.recent == nil {
		s.recent = map[uint64]string{}
	}
	s.recent[key] = replica
}

// turn drops the older half when the recent one is old or full.
func (s *sessions) turn(now time.Time) {
	age := now.Sub(s.turned)
	if age < sessionHalf && len(s.recent) < maxSessions {
		return
	}
	if s.older = s.recent; age >= 2*sessionHalf {
		s.older = nil
	}
	s.recent, s.turned = nil, now
}

// remember notes the replica that a session's request is given. mu is held.
func (q *Queue) remember(req *Request, r *replica, now time.Time) {
	if !req.Session {
		return
	}
	if last := q.sessions.find(req.Key, now); last != "" && last != r.Replica.ID {
		switch at := findReplica(q.replicas, last); {
		case at == nil || !at.usable(now) || last == req.FailedReplica:
			req.Moved = MovedGone
		case slices.Contains(r.Replica.Adapters, req.Adapter) && !slices.Contains(at.Replica.Adapters, req.Adapter):
			req.Moved = MovedAdapter
		default:
			req.Moved = MovedSaturated
		}
	}
	q.sessions.store(req.Key, r.Replica.ID, now)
}
