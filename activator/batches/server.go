package batches

import (
	"cmp"
	"encoding/json/v2"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
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

// Options of a Server. Those without a default must be set.
type Options struct {
	// Data is the data folder; files and batches are in its folder batches.
	Data string
	// Serve is the handler of the data path.
	Serve httpserver.Handler
	// Describe is the item of /v1/models of a model that a caller may name, as JSON.
	Describe func(id auth.Identity, model string) ([]byte, *openai.Error)
	// Caller is the identity of a client; header returns the value of a field that it sent.
	Caller func(header func(name string) string) (auth.Identity, *openai.Error)
	// HasKey reports whether the key of an id is valid still.
	HasKey func(id string) bool
	// Spare is how many lines may be sent now so that a team's limits have room for its other
	// requests.
	Spare func(team string) int
	// Ledger is charged with what lines cost.
	Ledger *spend.Ledger
	// Demand yields the demand for each function that runs on this server's machines.
	Demand func(yield func(Demand) bool)
	// GPUs is how many there are.
	GPUs func() int
	// Concurrency bounds the lines of one model at once; 16.
	Concurrency int
	// Quiet is how long after a request that is no line a function keeps its place, and how
	// long after one waited no cold model is loaded for lines; 30 s.
	Quiet time.Duration
	// MaxLine bounds a line in bytes, as a body is.
	MaxLine int64
	// Count counts for a metric.
	Count func(metric string, value float64, labels ...string)
	// Log gets a line per batch that begins or ends.
	Log *slog.Logger
	Now func() time.Time
}

// Demand is the demand for a function, lines of batches included.
type Demand struct {
	Name           functions.Name
	GPUs           int // that a replica takes
	Active, Queued int
	LastEnd        time.Time // of a request; zero: there was none
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
	draining atomic.Bool     // set under mu
	idle     chan struct{}   // closed when no line runs; nil: Drain was not called
	running  int
	bytes    int64 // of the lines that run
}

// Open opens the folder; Run must follow for batches to be run.
func Open(o Options) (*Server, error) {
	o.Concurrency, o.Quiet = cmp.Or(o.Concurrency, 16), cmp.Or(o.Quiet, 30*time.Second)
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

// Serve answers a request for a path of this server. It is a [httpserver.Handler].
func (s *Server) Serve(req *httpserver.Request, res *httpserver.Response) {
	res.Set("x-request-id", openai.NewID())
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
		res.Refuse(e)
	}
}

// answer returns what is to be sent as JSON, unless it has set the answer itself.
func (s *Server) answer(req *httpserver.Request, res *httpserver.Response) (any, *openai.Error) {
	id, e := s.o.Caller(req.Header)
	if e != nil {
		return nil, e
	}
	parts := strings.SplitN(strings.TrimPrefix(req.Path, "/v1/"), "/", 4)
	var name string
	if len(parts) > 1 && parts[1] != "" {
		name, parts[1] = parts[1], "ID"
	}
	type action = func() (any, *openai.Error)
	methods := map[string]map[string]action{
		"files": {
			"GET":  func() (any, *openai.Error) { return s.listFiles(id, req) },
			"POST": func() (any, *openai.Error) { return s.createFile(id, req) },
		},
		"files/ID": {
			"GET":    func() (any, *openai.Error) { return s.getFile(id, name) },
			"DELETE": func() (any, *openai.Error) { return s.deleteFile(id, name) },
		},
		"files/ID/content": {"GET": func() (any, *openai.Error) { return nil, s.content(id, name, res) }},
		"batches": {
			"GET":  func() (any, *openai.Error) { return s.listBatches(id, req) },
			"POST": func() (any, *openai.Error) { return s.createBatch(id, req) },
		},
		"batches/ID":        {"GET": func() (any, *openai.Error) { return s.getBatch(id, name) }},
		"batches/ID/cancel": {"POST": func() (any, *openai.Error) { return s.cancelBatch(id, name) }},
	}[strings.Join(parts, "/")]
	if methods == nil {
		return nil, openai.New(openai.UnknownEndpoint,
			"Unknown endpoint: "+functions.Clip(req.Path)+
				". Files and batches have /v1/files, /v1/files/ID, /v1/files/ID/content, /v1/batches, /v1/batches/ID and /v1/batches/ID/cancel.")
	}
	if f := methods[req.Method]; f != nil {
		return f()
	}
	allowed := slices.DeleteFunc([]string{"GET", "POST", "DELETE"}, func(m string) bool { return methods[m] == nil })
	e = openai.New(openai.MethodNotAllowed, "Use "+strings.Join(allowed, " or ")+" here.")
	e.Allow = strings.Join(allowed, ", ")
	return nil, e
}

// storeError is the answer where the store failed; what names the thing that was asked for.
func (s *Server) storeError(err error, what, id string) *openai.Error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return openai.New(openai.NotFound, "No such "+what+": `"+functions.Clip(id)+"`.").With("id")
	case errors.Is(err, store.ErrInUse):
		return openai.New(openai.Conflict,
			"The file `"+id+"` is the input of a batch that has not ended. Cancel the batch first, or wait for its end.")
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		s.o.Log.Error("the disk of the data folder is full", "error", err)
		return openai.New(openai.ServiceUnavailable, "The disk of the server has no room for this.").After(time.Minute)
	}
	s.o.Log.Error("the folder of files and batches failed", "error", err)
	return openai.New(openai.InternalError, "")
}

// page is a part of a list, in OpenAI's form.
type page struct {
	Object  string  `json:"object"`
	Data    []any   `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

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
		bad := !slices.Contains(allowed, name) || len(v) != 1
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
		slices.Reverse(items)
	}
	if q.after != "" {
		at := slices.IndexFunc(items, func(x T) bool { return id(x) == q.after })
		if at < 0 {
			return nil, openai.New(openai.InvalidValue, "after names nothing in this list: `"+functions.Clip(q.after)+"`.").With("after")
		}
		items = items[at+1:]
	}
	p := page{Object: "list", Data: []any{}, HasMore: len(items) > q.limit}
	for i, x := range items[:min(len(items), q.limit)] {
		p.Data = append(p.Data, show(x))
		if p.LastID = new(id(x)); i == 0 {
			p.FirstID = p.LastID
		}
	}
	return p, nil
}

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
