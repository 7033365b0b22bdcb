package cache

import (
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Header is the field of a request that says how it uses the cache, and of an answer that
// says what came of it.
const Header = "thaw-cache"

// Words of records and of the field of an answer.
const (
	wordExact = "exact"
	wordMiss  = "miss"
	wordOff   = "off"
)

const (
	modeOff  = "off"  // neither read nor store
	modeRead = "read" // read, never store
	modeOnly = "only" // as read, and a miss is an error
)

var modes = []string{"", modeOff, modeRead, modeOnly}

// Request is what a lookup depends on.
type Request struct {
	Header   string // thaw-cache of the request
	Team     string
	KeyID    string             // of the caller's key
	Router   *functions.Router  // that chose the function; nil: none
	Function *snapshot.Snapshot // that the request is for
	Adapter  string             // of the function; "" is none
	Path     string
	Stream   bool
	Envelope *openai.Envelope
	Body     []byte
	Hashed   Body // Body, where that was hashed already
	Now      time.Time
}

// Use is what one request has of the cache: an answer, or a place for one. A nil one has
// nothing.
type Use struct {
	store   *Store
	word    string
	field   string
	path    string
	stream  bool
	usage   bool // the client asked for the usage of a stream
	hit     *text
	key     [32]byte
	of      *function
	ttl     time.Duration
	now     time.Time
	keeps   bool // the answer is stored
	code    int
	charged openai.Usage
}

// CheckHeader refuses a wrong value of the header.
func CheckHeader(h string) *openai.Error {
	if slices.Contains(modes, h) {
		return nil
	}
	return openai.New(openai.InvalidValue, "The header thaw-cache is off, read or only, not `"+functions.Clip(h)+"`.").With(Header)
}

// configOf is the exact cache of the Router, else of the Model; nil where there is none.
func (r *Request) configOf() *functions.ExactCache {
	if r.Router != nil && r.Router.Spec.Cache.Exact != nil {
		return r.Router.Spec.Cache.Exact
	}
	if m := r.Function.Model; m != nil {
		return m.Spec.Cache.Exact
	}
	return nil
}

// Look looks a request up; nil where no cache is on. The error is the answer to a header that is wrong or that asks
// for an answer that is not there.
func (s *Store) Look(q Request) (*Use, *openai.Error) {
	if e := CheckHeader(q.Header); e != nil {
		return nil, e
	}
	c := q.configOf()
	if s == nil || c == nil {
		if q.Header == modeOnly {
			return nil, openai.New(openai.CacheMiss,
				"No cache is on for `"+q.Function.PublicName().Short()+"`: set cache.exact on it or on its Router.")
		}
		return nil, nil
	}
	u := &Use{store: s, word: wordOff, path: q.Path, stream: q.Stream, usage: q.Envelope.IncludeUsage, now: q.Now}
	if q.Header == modeOff {
		u.field = wordOff
		return u, nil
	}
	reason := s.find(u, &q, c)
	if u.hit != nil {
		u.of.count[0](1)
		return u, nil
	}
	u.word, u.field = wordMiss, wordMiss
	u.keeps = reason == "" && q.Header == ""
	if reason != "" {
		u.field += "; reason=" + reason
	}
	if u.of != nil {
		u.of.count[1](1)
	}
	if q.Header == modeOnly {
		message := "No answer to this request is in the cache."
		if reason != "" {
			message = "No answer to this request is kept in the cache: reason " + reason + "."
		}
		return u, openai.New(openai.CacheMiss, message)
	}
	return u, nil
}

// find fills in the answer; the reason is why there can be none.
func (s *Store) find(u *Use, q *Request, c *functions.ExactCache) (reason string) {
	f, ok := formOf(q.Path)
	if !ok || q.Stream && !f.events {
		return byEndpoint
	}
	if u.of = s.function(q.Function); u.of == nil {
		return byState
	}
	k := scope{team: q.Team, function: q.Function.Name, version: u.of.version, adapter: q.Adapter, path: q.Path}
	if c.Scope == functions.CacheScopeKey {
		k.key = q.KeyID
	}
	if u.key, reason = s.spellings.keyOf(k, f, q, c); reason != "" {
		return reason
	}
	u.ttl = c.TTL.Std()
	a, age := s.get(u.key, q.Now, u.ttl)
	if a == nil {
		return ""
	}
	if u.hit = a.in(q.Stream, u.usage); u.hit != nil {
		u.word = wordExact
		u.field = wordExact + "; age=" + strconv.Itoa(int(age/time.Second))
	}
	return ""
}

// Word is what a record says: exact, miss or off.
func (u *Use) Word() string {
	if u == nil {
		return wordOff
	}
	return u.word
}

// Hit reports whether the request is answered from the cache.
func (u *Use) Hit() bool { return u != nil && u.hit != nil }

// Stores reports whether the answer is to be stored.
func (u *Use) Stores() bool { return u != nil && u.keeps }

// Drop has the answer not stored: another function gives it.
func (u *Use) Drop() {
	if u != nil {
		u.keeps = false
	}
}

// SetField sets thaw-cache of an answer.
func (u *Use) SetField(res *httpserver.Response) {
	if u != nil && u.field != "" {
		res.Set(Header, u.field)
	}
}

// Attrs appends the field of the log.
func (u *Use) Attrs(attrs []slog.Attr) []slog.Attr {
	if u.Word() != wordOff {
		attrs = append(attrs, slog.String("cache", u.word))
	}
	return attrs
}

// Replay answers with the answer that was found, under the id of the request.
func (u *Use) Replay(res *httpserver.Response, id string) {
	res.Status = 200
	res.Body = u.hit.body(id, u.stream, u.usage)
	if u.stream {
		res.Set("content-type", "text/event-stream")
		res.Set("cache-control", "no-cache, no-transform")
		res.Set("x-accel-buffering", "no")
		return
	}
	res.Set("content-type", "application/json")
}

// End notes how the request ended, and what its engine reported.
func (u *Use) End(code int, usage openai.Usage) {
	if u != nil {
		u.code, u.charged = code, usage
	}
}

// Record stores an answer once all of it has been read and the request has ended well.
func (u *Use) Record(res *httpserver.Response) {
	if !u.Stores() || res.Status != 200 {
		return
	}
	kind := httpserver.FieldOf(res.Fields, "content-type")
	events := strings.HasPrefix(kind, "text/event-stream")
	if events != u.stream || !events && !strings.HasPrefix(kind, "application/json") {
		return
	}
	if res.Stream == nil {
		u.store.keep(u, res.Body)
		return
	}
	res.Stream = &recorder{ReadCloser: res.Stream, use: u}
}

// keep stores the answer of a request, if that is whole.
func (s *Store) keep(u *Use, body []byte) {
	if u.code != 200 || len(body) > maxAnswer {
		return
	}
	if a := newAnswer(u.path, body, u.stream, u.charged); a != nil {
		s.put(u.key, u.of, a, u.now, u.ttl)
	}
}

// recorder remembers an answer while it is read.
type recorder struct {
	io.ReadCloser
	use  *Use
	body []byte
	long bool
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	switch {
	case r.long:
	case len(r.body)+n > maxAnswer:
		r.long, r.body = true, nil
	default:
		r.body = append(r.body, p[:n]...)
		if err == io.EOF {
			r.use.store.keep(r.use, r.body)
			r.long, r.body = true, nil
		}
	}
	return n, err
}
