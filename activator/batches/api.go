package batches

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/jsonerror"
	"github.com/thaw-dev/thaw/functions/openai"
)

// endpoints are the paths that a batch may be for.
var endpoints = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}

// Bounds of completion_window.
const (
	leastWindow = time.Minute
	mostWindow  = 7 * 24 * time.Hour
)

// creation is the body of POST /v1/batches.
type creation struct {
	InputFileID        string            `json:"input_file_id"`
	Endpoint           string            `json:"endpoint"`
	CompletionWindow   string            `json:"completion_window"`
	Metadata           map[string]string `json:"metadata"`
	OutputExpiresAfter *struct {
		Anchor  string `json:"anchor"`
		Seconds int64  `json:"seconds"`
	} `json:"output_expires_after"`
}

// readCreation reads and checks the body; window is its completion_window.
func readCreation(body []byte) (c creation, window time.Duration, e *openai.Error) {
	if err := json.Unmarshal(body, &c, json.RejectUnknownMembers(true)); err != nil {
		if s, ok := errors.AsType[*json.SemanticError](err); ok {
			return c, 0, openai.New(openai.InvalidValue,
				"The body is not one of a batch: "+jsonerror.Describe(s)+".").With(strings.TrimPrefix(string(s.JSONPointer), "/"))
		}
		return c, 0, openai.New(openai.InvalidJSON,
			"The body is not valid JSON: "+functions.Clip(strings.TrimPrefix(err.Error(), "jsontext: "))+".")
	}
	window, err := time.ParseDuration(c.CompletionWindow)
	invalid := func(param, text string) (creation, time.Duration, *openai.Error) {
		return c, 0, openai.New(openai.InvalidValue, text).With(param)
	}
	switch x := c.OutputExpiresAfter; {
	case c.InputFileID == "":
		return invalid("input_file_id", "input_file_id is missing: upload a file with purpose batch first.")
	case !slices.Contains(endpoints, c.Endpoint):
		return invalid("endpoint", "endpoint is `"+functions.Clip(c.Endpoint)+"`; want one of "+strings.Join(endpoints, ", ")+".")
	case err != nil, window < leastWindow, window > mostWindow:
		return invalid("completion_window",
			"completion_window is `"+functions.Clip(c.CompletionWindow)+"`; want 24h, or another time from 1m to 168h.")
	case len(c.Metadata) > 16:
		return invalid("metadata", "metadata has more than 16 members.")
	case x != nil && (x.Anchor != "created_at" || x.Seconds < leastKeep || x.Seconds > keepFiles):
		return invalid("output_expires_after", "output_expires_after has the anchor created_at, and seconds from 3600 to 2592000.")
	}
	for k, v := range c.Metadata {
		if len(k) > 64 || len(v) > 512 {
			return invalid("metadata", "A key of metadata has at most 64 bytes, a value 512.")
		}
	}
	return c, window, nil
}

// createBatch makes a batch. Its input is read later.
func (s *Server) createBatch(id auth.Identity, req *httpserver.Request) (any, *openai.Error) {
	c, window, e := readCreation(req.Body)
	if e != nil {
		return nil, e
	}
	data := req.Header("thaw-data")
	switch functions.DataClass(data) {
	case "", functions.DataPublic, functions.DataInternal, functions.DataSecret:
	default:
		return nil, openai.New(openai.InvalidValue, "thaw-data is `"+functions.Clip(data)+"`; want public, internal or secret.").With("thaw-data")
	}
	s.update.Lock()
	defer s.update.Unlock()
	if n := len(s.store.Batches(func(r *store.Record) bool { return r.Team == id.Team && !r.Ended() })); n >= maxBatches {
		return nil, openai.New(openai.RateLimitExceeded,
			fmt.Sprintf("The team has %d batches that have not ended, as many as one may.", n)).After(openai.MaxRetryAfter)
	}
	f, err := s.store.File(id.Team, c.InputFileID)
	switch {
	case err != nil:
		return nil, s.storeError(err, "file", c.InputFileID).With("input_file_id")
	case f.Purpose != "batch":
		return nil, openai.New(openai.InvalidValue, "The file `"+f.ID+"` has the purpose "+f.Purpose+"; want batch.").With("input_file_id")
	}
	now := s.o.Now()
	r := store.Record{
		ID: "batch_" + openai.NewID(), Object: "batch", Endpoint: c.Endpoint, InputFileID: f.ID, CompletionWindow: c.CompletionWindow,
		Status: store.Validating, CreatedAt: now.Unix(), ExpiresAt: now.Add(window).Unix(), Metadata: c.Metadata,
		Team: id.Team, KeyID: id.KeyID, Admin: id.Admin, Data: strings.Clone(data), Keep: keepFiles,
	}
	if x := c.OutputExpiresAfter; x != nil {
		r.Keep = x.Seconds
	}
	if err := s.store.Save(r); err != nil {
		return nil, s.storeError(err, "batch", r.ID)
	}
	s.o.Log.Info("batch created", "id", r.ID, "team", r.Team, "input", r.InputFileID, "endpoint", r.Endpoint, "window", window.String())
	s.wake()
	return r.Batch, nil
}

func (s *Server) listBatches(id auth.Identity, req *httpserver.Request) (any, *openai.Error) {
	q, e := readListQuery(req.Query, 20, 100, "after", "limit")
	if e != nil {
		return nil, e
	}
	list := s.store.Batches(func(r *store.Record) bool { return r.Team == id.Team })
	return paginate(q, list, func(r store.Record) string { return r.ID }, func(r store.Record) any { return s.show(r) })
}

func (s *Server) getBatch(id auth.Identity, name string) (any, *openai.Error) {
	r, err := s.store.Batch(id.Team, name)
	if err != nil {
		return nil, s.storeError(err, "batch", name)
	}
	return s.show(r), nil
}

// show is a batch as it is read, with the counts of now.
func (s *Server) show(r store.Record) store.Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[r.ID]; j != nil && !r.Ended() && r.Outcome == "" {
		r.RequestCounts, r.Usage = j.counts, j.used()
	}
	return r.Batch
}

// cancelBatch begins to end a batch; one that is being cancelled is answered as it is.
func (s *Server) cancelBatch(id auth.Identity, name string) (any, *openai.Error) {
	var refusal *openai.Error
	r, err := s.change(id.Team, name, func(r *store.Record) bool {
		switch {
		case r.Status == store.Cancelled, r.Status == store.Cancelling:
			return false
		case r.Ended(), r.Outcome != "":
			refusal = openai.New(openai.Conflict, "The batch is "+r.Status+" and cannot be cancelled any more.")
			return false
		}
		r.Status, r.CancellingAt = store.Cancelling, s.now()
		return true
	})
	switch {
	case refusal != nil:
		return nil, refusal
	case err != nil:
		return nil, s.storeError(err, "batch", name)
	}
	s.mu.Lock()
	if j := s.jobs[r.ID]; j != nil {
		j.end(store.Cancelled)
	}
	s.mu.Unlock()
	s.wake()
	return s.show(r), nil
}

// now is the time as a batch has it.
func (s *Server) now() *int64 { return new(s.o.Now().Unix()) }

// change changes a batch of a team and saves it, unless f returns false.
func (s *Server) change(team, id string, f func(*store.Record) bool) (store.Record, error) {
	s.update.Lock()
	defer s.update.Unlock()
	r, err := s.store.Batch(team, id)
	if err != nil || !f(&r) {
		return r, err
	}
	return r, s.store.Save(r)
}

// wake has Run look for something to do.
func (s *Server) wake() { s.kick.Set() }
