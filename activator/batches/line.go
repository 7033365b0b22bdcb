package batches

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"net/http"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// response is the answer in an entry.
type response struct {
	StatusCode int            `json:"status_code"`
	RequestID  string         `json:"request_id"`
	Body       jsontext.Value `json:"body"`
}

// Tries of a line that fails by what may be its own fault, or of a model that cannot be
// loaded, and the pauses between tries.
const (
	maxTries   = 5
	leastPause = time.Second
	mostPause  = time.Minute
	loadPause  = 30 * time.Second // the first; each next one is twice as long
)

// attempt is how a line went.
type attempt struct {
	entry entry
	ended bool          // it has its entry; false: it is to be run again
	pause time.Duration // that the answer asked for before the next try
	wears bool          // the try counts as one of maxTries
	load  bool          // the model could not be loaded
}

// runLine sends one line. An answer of the data path's that may be another one later is no
// entry. failed says how often the model could not be loaded of late.
func (s *Server) runLine(j *job, p place, failed int) (a attempt) {
	l, err := p.read(j.in)
	if err != nil {
		a.wears, a.entry = false, entry{CustomID: l.CustomID}
		s.o.Log.Error("a line of a batch cannot be read", "id", j.rec.ID, "line", p.number, "error", err)
		return a
	}
	a.entry.CustomID = l.CustomID
	c := &call.Caller{Identity: j.identity(), Priority: "low", Data: functions.DataClass(j.rec.Data), Entry: p.cost, Draining: s.draining.Load}
	answer, err := call.Do(j.ctx, s.o.Serve, c, j.rec.Endpoint, nil, l.Body)
	var panicked *call.PanicError
	switch {
	case err != nil && j.ctx.Err() != nil:
		return a
	case errors.Is(err, call.ErrTooLarge):
		a.ended, a.entry.Error = true, &failure{"answer_too_large", "The answer is too large."}
		return a
	case errors.As(err, &panicked):
		s.o.Log.Error("a line of a batch panicked", "id", j.rec.ID, "line", p.number, "panic", panicked.Value, "stack", string(panicked.Stack))
		a.wears, a.entry.Error = true, &failure{"server_error", "Something went wrong inside the server."}
	case err != nil:
		a.wears, a.entry.Error = true, &failure{"server_error", "The answer broke: " + err.Error() + "."}
	default:
		a.entry.Response = &response{StatusCode: answer.Status, RequestID: answer.Header("x-request-id"), Body: oneLine(answer.Body)}
		a.ended = true
		if e := answer.Problem(); e != nil {
			a.ended, a.wears = passes(e)
			a.pause = e.RetryAfter
			if a.load = e.Code == openai.ModelLoadFailed; a.load {
				a.ended = failed+1 >= maxTries
				a.pause = loadPause << failed
			}
		}
	}
	if a.wears && p.tries+1 >= maxTries {
		a.ended = true
	}
	return a
}

// passes reports whether an error is final, and whether another try is one of few.
func passes(e *openai.Error) (final, wears bool) {
	switch {
	case e.Status == http.StatusTooManyRequests, e.Status == http.StatusServiceUnavailable:
		return false, false
	case e.Status >= 500:
		return false, true
	}
	return true, false
}

// oneLine is a body of JSON without line ends; another body becomes a string.
func oneLine(body []byte) jsontext.Value {
	v := jsontext.Value(body)
	if v.Compact(jsontext.AllowDuplicateNames(true)) == nil {
		return v
	}
	return quote(body)
}

// quote is a body as a string of JSON.
func quote(body []byte) jsontext.Value {
	b, err := json.Marshal(string(body), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return jsontext.Value("null")
	}
	return b
}

// outlook is what is known of a model by its name.
type outlook struct {
	Ready bool
	Local bool // it needs a place on this server's machines
}

// lookUp asks for a model as the one who made a batch may see it.
func (s *Server) lookUp(id auth.Identity, model string) (o outlook, e *openai.Error) {
	body, e := s.o.Describe(id, model)
	if e != nil {
		return o, e
	}
	var item struct {
		OwnedBy string `json:"owned_by"`
		Status  struct {
			Value string `json:"value"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &item); err != nil {
		return o, openai.New(openai.InternalError, "")
	}
	o.Local = item.OwnedBy != "remote" && item.OwnedBy != "router" && item.OwnedBy != "composition"
	o.Ready = !o.Local || item.Status.Value == "loaded"
	return o, nil
}
