package batches

import (
	"cmp"
	"encoding/json/v2"
	"errors"
	"log/slog"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Options of a Server. Data, Serve, Describe and Caller must be set.
type Options struct {
	// Data is the data folder; files and batches are in its folder batches.
	Data string
	// Serve is the handler of the data path.
	Serve httpserver.Handler
	// Describe is the item of /v1/models of a model that a caller may name, as JSON.
	Describe func(id auth.Identity, model string) ([]byte, *openai.Error)
	// Caller is the identity of a client; header returns the value of a field that it sent.
	Caller func(header func(name string) string) (auth.Identity, *openai.Error)
	// HasKey reports whether the key of an id is valid still; nil: all are.
	HasKey func(id string) bool
	// Spare is how many lines may be sent now so that a team's limits have room for its other
	// requests; nil: any number.
	Spare func(team string) int
	// Ledger is charged with what lines cost; nil: one that is kept nowhere.
	Ledger *spend.Ledger
	// Demand yields the demand for each function that runs on this server's machines; nil:
	// there is none but that of lines.
	Demand func(yield func(Demand) bool)
	// GPUs is how many there are; nil: none.
	GPUs func() int
	// Concurrency bounds the lines of one model at once; 16.
	Concurrency int
	// Quiet is how long after a request that is no line a function keeps its place, and how
	// long after one waited no cold model is loaded for lines; 30 s.
	Quiet time.Duration
	// MaxLine bounds a line in bytes, as a body is; 32 MiB.
	MaxLine int64
	// Count counts for a metric; nil: nothing is counted.
	Count func(metric string, value float64, labels ...string)
	// Log gets a line per batch that begins or ends; nil is silence.
	Log *slog.Logger
	// Now is the clock; time.Now.
	Now func() time.Time
}

// Demand is the demand for a function, lines of batches included.
type Demand struct {
	Name           functions.Name
	GPUs           int // that a replica takes
	Active, Queued int
	LastEnd        time.Time // of a request; zero: there was none
}

func (o Options) withDefaults() Options {
	if o.HasKey == nil {
		o.HasKey = func(string) bool { return true }
	}
	if o.Ledger == nil {
		o.Ledger, _ = spend.Open("")
	}
	if o.Demand == nil {
		o.Demand = func(func(Demand) bool) {}
	}
	if o.Spare == nil {
		o.Spare = func(string) int { return math.MaxInt }
	}
	if o.GPUs == nil {
		o.GPUs = func() int { return 0 }
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 16
	}
	if o.Quiet <= 0 {
		o.Quiet = 30 * time.Second
	}
	if o.MaxLine <= 0 {
		o.MaxLine = 32 << 20
	}
	if o.Count == nil {
		o.Count = func(string, float64, ...string) {}
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Server serves the paths, and its Run runs the batches. Its methods may be called
// concurrently.
type Server struct {
	o       Options
	maxFile int64 // MaxFile; less in tests
	store   *store.Store
	uploads atomic.Int32
	kick    newest.Signal // set when there is something to do

	update sync.Mutex // held while a record is read, changed and saved

	mu       sync.Mutex
	jobs     map[string]*job // of batches that are being run
	draining bool
	idle     chan struct{} // closed when no line runs; nil: Drain was not called
	running  int
	bytes    int64 // of the lines that run
}

// Open opens the folder; Run must follow for batches to be run.
func Open(o Options) (*Server, error) {
	o = o.withDefaults()
	st, err := store.Open(filepath.Join(o.Data, "batches"))
	if err != nil {
		return nil, err
	}
	return &Server{o: o, maxFile: MaxFile, store: st, kick: newest.NewSignal(), jobs: map[string]*job{}}, nil
}

const (
	filesPath   = "/v1/files"
	batchesPath = "/v1/batches"
)

// ServesPath reports whether a path is this server's.
func ServesPath(path string) bool {
	return path == filesPath || path == batchesPath || strings.HasPrefix(path, filesPath+"/") || strings.HasPrefix(path, batchesPath+"/")
}

// Authorize refuses the body of a request whose key is wrong. It is
// [httpserver.Options].Authorize.
func (s *Server) Authorize(req *httpserver.Request, res *httpserver.Response) (key string, ok bool) {
	id, e := s.o.Caller(req.Header)
	if e != nil {
		res.Set("x-request-id", openai.NewID())
		res.Refuse(e)
	}
	return id.KeyID, e == nil
}

// Serve answers a request for a path of this server. It is a [httpserver.Handler].
func (s *Server) Serve(req *httpserver.Request, res *httpserver.Response) {
	out, e := s.answer(req, res)
	if e == nil && out != nil {
		var err error
		if res.Body, err = json.Marshal(out); err != nil {
			e = openai.New(openai.InternalError, "")
		}
		res.Set("content-type", "application/json")
		res.Set("cache-control", "no-store")
	}
	if e != nil {
		res.Set("x-request-id", openai.NewID())
		res.Refuse(e)
		return
	}
	res.Set("x-request-id", openai.NewID())
}

// answer returns what is to be sent as JSON, unless it has set the answer itself.
func (s *Server) answer(req *httpserver.Request, res *httpserver.Response) (any, *openai.Error) {
	id, e := s.o.Caller(req.Header)
	if e != nil {
		return nil, e
	}
	kind, rest, _ := strings.Cut(strings.TrimPrefix(req.Path, "/v1/"), "/")
	name, action, _ := strings.Cut(rest, "/")
	one, bare := strings.HasPrefix(rest, name) && name != "", rest == "" && !strings.HasSuffix(req.Path, "/")
	var methods map[string]func() (any, *openai.Error)
	switch {
	case kind == "files" && bare:
		methods = map[string]func() (any, *openai.Error){
			"GET":  func() (any, *openai.Error) { return s.listFiles(id, req) },
			"POST": func() (any, *openai.Error) { return s.createFile(id, req) },
		}
	case kind == "files" && one && rest == name:
		methods = map[string]func() (any, *openai.Error){
			"GET":    func() (any, *openai.Error) { return s.getFile(id, name) },
			"DELETE": func() (any, *openai.Error) { return s.deleteFile(id, name) },
		}
	case kind == "files" && one && action == "content":
		methods = map[string]func() (any, *openai.Error){
			"GET": func() (any, *openai.Error) { return nil, s.content(id, name, res) },
		}
	case kind == "batches" && bare:
		methods = map[string]func() (any, *openai.Error){
			"GET":  func() (any, *openai.Error) { return s.listBatches(id, req) },
			"POST": func() (any, *openai.Error) { return s.createBatch(id, req) },
		}
	case kind == "batches" && one && rest == name:
		methods = map[string]func() (any, *openai.Error){
			"GET": func() (any, *openai.Error) { return s.getBatch(id, name) },
		}
	case kind == "batches" && one && action == "cancel":
		methods = map[string]func() (any, *openai.Error){
			"POST": func() (any, *openai.Error) { return s.cancelBatch(id, name) },
		}
	default:
		return nil, openai.New(openai.UnknownEndpoint,
			"Unknown endpoint: "+functions.Clip(req.Path)+
				". Files and batches have /v1/files, /v1/files/ID, /v1/files/ID/content, /v1/batches, /v1/batches/ID and /v1/batches/ID/cancel.")
	}
	if f := methods[req.Method]; f != nil {
		return f()
	}
	return nil, methodNotAllowed(methods)
}

func methodNotAllowed[F any](methods map[string]F) *openai.Error {
	var allowed []string
	for _, m := range []string{"GET", "POST", "DELETE"} {
		if _, ok := methods[m]; ok {
			allowed = append(allowed, m)
		}
	}
	e := openai.New(openai.MethodNotAllowed, "Use "+strings.Join(allowed, " or ")+" here.")
	e.Allow = strings.Join(allowed, ", ")
	return e
}

// storeError is the answer where the store failed; what names the thing that was asked for.
func (s *Server) storeError(err error, what, id string) *openai.Error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return openai.New(openai.NotFound, "No such "+what+": `"+functions.Clip(id)+"`.").With("id")
	case errors.Is(err, store.ErrInUse):
		return openai.New(openai.Conflict,
			"The file `"+id+"` is the input of a batch that has not ended. Cancel the batch first, or wait for its end.")
	case isFull(err):
		s.o.Log.Error("the disk of the data folder is full", "error", err)
		return openai.New(openai.ServiceUnavailable, "The disk of the server has no room for this.").After(time.Minute)
	}
	s.o.Log.Error("the folder of files and batches failed", "error", err)
	return openai.New(openai.InternalError, "")
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// page is a part of a list, in OpenAI's form.
type page struct {
	Object  string  `json:"object"`
	Data    []any   `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// listQuery is the query of a list.
type listQuery struct {
	after, purpose string
	limit          int
	ascending      bool
}

// readListQuery reads the members of a query that are allowed.
func readListQuery(query string, limit, most int, allowed ...string) (q listQuery, e *openai.Error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, openai.New(openai.InvalidValue, "The query is not well formed.")
	}
	q.limit = limit
	for name, v := range values {
		known := false
		for _, a := range allowed {
			known = known || a == name
		}
		bad := !known || len(v) != 1
		switch name {
		case "after":
			q.after = v[0]
		case "purpose":
			q.purpose = v[0]
		case "limit":
			q.limit, err = strconv.Atoi(v[0])
			bad = bad || err != nil || q.limit < 1 || q.limit > most
		case "order":
			q.ascending = v[0] == "asc"
			bad = bad || v[0] != "asc" && v[0] != "desc"
		}
		if bad {
			return q, openai.New(openai.InvalidValue,
				"The query takes "+strings.Join(allowed, ", ")+", each once; limit is from 1 to "+strconv.Itoa(most)+".").With(functions.Clip(name))
		}
	}
	return q, nil
}

// paginate cuts the page that q asks for out of items. ids are the items' own.
func paginate[T any](q listQuery, items []T, id func(T) string, show func(T) any) (any, *openai.Error) {
	if q.ascending {
		for i, j := 0, len(items)-1; i < j; i, j = i+1, j-1 {
			items[i], items[j] = items[j], items[i]
		}
	}
	if q.after != "" {
		at := -1
		for i := range items {
			if id(items[i]) == q.after {
				at = i
			}
		}
		if at < 0 {
			return nil, openai.New(openai.InvalidValue, "after names nothing in this list: `"+functions.Clip(q.after)+"`.").With("after")
		}
		items = items[at+1:]
	}
	p := page{Object: "list", Data: []any{}, HasMore: len(items) > q.limit}
	for i, x := range items[:min(len(items), q.limit)] {
		p.Data = append(p.Data, show(x))
		name := id(x)
		if p.LastID = &name; i == 0 {
			p.FirstID = &name
		}
	}
	return p, nil
}

// Samples yields the gauges.
func (s *Server) Samples(yield func(metric string, value float64, labels ...string)) {
	type of struct{ team, status string }
	n, left := map[of]int{}, map[string]int{}
	for _, r := range s.store.Batches(func(r *store.Record) bool { return !r.Ended() }) {
		n[of{r.Team, r.Status}]++
		left[r.Team] += 0
	}
	s.mu.Lock()
	for _, j := range s.jobs {
		left[j.rec.Team] += j.left
	}
	s.mu.Unlock()
	for k, v := range n {
		yield("thaw_batches", float64(v), k.team, k.status)
	}
	for team, v := range left {
		yield("thaw_batch_lines_waiting", float64(v), team)
	}
}
