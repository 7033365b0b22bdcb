package socket

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/router/intents"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const (
	largeText     = 4 << 10 // a larger text is decided about at most once in largeInterval
	largeInterval = 250 * time.Millisecond
	aheadInterval = time.Second // between two things begun ahead for one socket
)

// prediction is what the Router decided on the text so far, and what was begun for it. The
// goroutine that reads owns it, but for what mu guards.
type prediction struct {
	text    string // that was decided about
	at      time.Time
	decided bool
	target  string
	typed   intents.Typed

	mu         sync.Mutex
	candidates []functions.RouteCandidate // of the newest decision
	lease      *lease                     // what was begun; nil: nothing
	began      time.Time                  // when something was begun last
	timer      *time.Timer                // begins what had to wait for aheadInterval
	ended      bool
}

// predict decides again where the text has a new word, and tells the client what changed.
func (s *socket) predict() *openai.Error {
	p, text, now := &s.prediction, "", s.s.o.Now()
	var messages any
	if s.session.messages != nil {
		text, messages = string(s.session.messages), s.session.messages
	} else if text = s.session.text[:lastBoundary(s.session.text)]; strings.TrimSpace(text) == "" && !p.decided {
		return nil
	}
	if p.decided && (text == p.text || len(text) > largeText && now.Sub(p.at) < largeInterval) {
		return nil
	}
	body, err := s.body(text, messages)
	if err != nil {
		return openai.New(openai.InvalidJSON, err.Error())
	}
	rec, e := s.s.o.Decide(s.id, s.router, generatePath, s.header, body, &p.typed)
	if e != nil {
		if messages != nil && e.Status == 400 {
			return e
		}
		return nil // the submit has its own answer
	}
	p.text, p.at, p.decided = text, now, true
	p.mu.Lock()
	p.candidates = rec.Candidates
	p.mu.Unlock()
	intent, confidence := rec.Features.Intent, rec.Features.Confidence
	if intent == s.session.intent && rec.Rule == s.session.rule && rec.Target == p.target {
		return nil
	}
	frame := intentFrame{Type: "intent_change", Old: s.session.intent, New: intent, Confidence: confidence, Rule: rec.Rule, Target: rec.Target}
	s.session.intent, s.session.rule = intent, rec.Rule
	s.remember()
	frame.Prepares = p.prepare(s, &rec)
	p.target = rec.Target
	s.send(frame)
	return nil
}

// prepare gives up what was begun for another target, and begins what makes this one ready.
// It returns what that is.
func (p *prediction) prepare(o *socket, rec *functions.RouteRecord) string {
	ahead := o.s.o.Ahead
	if ahead == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if p.lease != nil && p.lease.target == rec.Target {
		return p.lease.kind
	}
	started := p.lease.startFor(ahead, o.id, rec)
	if p.lease != nil && p.lease != started {
		p.lease.releaseBut(started)
	}
	p.lease = started
	plan := ahead.plan(o.id, rec)
	switch {
	case plan == nil:
		return ""
	case started != nil && plan.kind == kindModel:
		return kindModel
	}
	if wait := aheadInterval - o.s.o.Now().Sub(p.began); wait > 0 && !p.began.IsZero() {
		p.timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.timer != nil && !p.ended && p.lease == started {
				p.timer = nil
				p.lease, p.began = ahead.begin(plan, started), o.s.o.Now()
			}
		})
		return plan.kind
	}
	p.lease, p.began = ahead.begin(plan, started), o.s.o.Now()
	return plan.kind
}

// takeLease gives what was begun to the generation that may use it.
func (p *prediction) takeLease() *lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lease
	p.lease = nil
	return l
}

func (p *prediction) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.lease != nil {
		p.lease.release()
		p.lease = nil
	}
}

// expected is the expected time to the first token of a target in whole seconds, as the
// newest decision knew it; 0 unknown.
func (p *prediction) expected(target string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.candidates {
		if c.Name == target && c.ExpectedMS > 0 {
			return int(c.ExpectedMS+999) / 1000
		}
	}
	return 0
}

// lastBoundary is where the last whole word of a text ends: behind the last rune that is
// no part of a word, or the last one of a script without spaces.
func lastBoundary(text string) int {
	for i := len(text); i > 0; {
		r, n := utf8.DecodeLastRuneInString(text[:i])
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && r != '\'' && r != '_' ||
			unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar) {
			return i
		}
		i -= n
	}
	return 0
}

// Outlook is what could be made ready for a decision.
type Outlook struct {
	// Sure: the rule that matched says something of the text, or is the only one.
	Sure bool
	// Function is the target with its adapter. Cold: no replica of it is READY.
	Function functions.Name
	Cold     bool
	// Replica is one that is READY and lacks the adapter; "": none has to load it.
	Replica string
	// Start is how long the newest cold start took; 0 unknown.
	Start time.Duration
}

// Ahead makes the targets of decisions ready before they are requested. Fields are set
// before its first use.
type Ahead struct {
	// Find returns what could be made ready for a decision about a request of this team.
	Find func(id auth.Identity, rec *functions.RouteRecord) Outlook
	// LoadAdapter has a replica load the adapter that name includes.
	LoadAdapter func(ctx context.Context, name functions.Name, replica string) error
	// Prewarm takes a lease on the team's budget for a start, and EndPrewarm ends it. Both
	// return soon.
	Prewarm    func(name functions.Name, until time.Time, by string) error
	EndPrewarm func(name functions.Name, by string)
	// Count adds to a series of a counter.
	Count func(metric string, value float64, labels ...string)
	Now   func() time.Time

	mu     sync.Mutex
	leases map[functions.Name]int // how many sockets want a start
}
