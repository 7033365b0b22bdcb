package ember

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

// modelName is the default name of a model: that of its folder.
func modelName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return filepath.Base(dir)
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /ping", s.health)
	mux.HandleFunc("GET /version", s.version)
	mux.HandleFunc("GET /metrics", s.scrape)
	mux.HandleFunc("GET /v1/models", s.whenLoaded(s.models))
	mux.HandleFunc("GET /v1/models/{name...}", s.whenLoaded(s.model))
	mux.HandleFunc("POST /v1/completions", s.whenLoaded(s.completions))
	mux.HandleFunc("POST /v1/chat/completions", s.whenLoaded(s.chat))
	mux.HandleFunc("POST /v1/embeddings", s.whenLoaded(s.embeddings))
	mux.HandleFunc("POST /v1/load_lora_adapter", s.whenLoaded(s.loadAdapter))
	mux.HandleFunc("POST /v1/unload_lora_adapter", s.whenLoaded(s.unloadAdapter))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Clear the write deadline of the last answer on this connection.
		http.NewResponseController(w).SetWriteDeadline(time.Time{})
		if s.o.Key != "" && !s.authorized(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			(&failure{http.StatusUnauthorized, "Unauthorized: this engine requires its key", "invalid_request_error", "",
				"invalid_api_key"}).write(w)
			return
		}
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r) // sets the path's values
			return
		}
		h.ServeHTTP(&errorShapingWriter{ResponseWriter: w, path: r.URL.Path}, r)
	})
}

// authorized reports whether the request has the key or its path needs none.
func (s *server) authorized(r *http.Request) bool {
	switch r.URL.Path { // open in vLLM too
	case "/health", "/ping", "/version", "/metrics":
		return true
	}
	sent, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return subtle.ConstantTimeCompare([]byte(sent), []byte(s.o.Key)) == 1 && ok
}

// errorShapingWriter gives the mux's 404 and 405 OpenAI's error shape.
type errorShapingWriter struct {
	http.ResponseWriter
	path string
	done bool
}

func (s *errorShapingWriter) WriteHeader(status int) {
	f := failure{status, "Not Found: " + s.path, "invalid_request_error", "", "unknown_endpoint"}
	if status == http.StatusMethodNotAllowed {
		f.message, f.code = "Method Not Allowed", "method_not_allowed"
	}
	if status < 400 { // a redirect to the clean path
		s.ResponseWriter.WriteHeader(status)
		return
	}
	s.done = true
	f.write(s.ResponseWriter)
}

func (s *errorShapingWriter) Write(b []byte) (int, error) {
	if s.done {
		return len(b), nil
	}
	return s.ResponseWriter.Write(b)
}

// whenLoaded refuses requests until the model is loaded, and writes the failure that handle
// returns.
func (s *server) whenLoaded(handle func(*engine, http.ResponseWriter, *http.Request) *failure) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.active.Add(1)
		defer s.active.Add(-1)
		f := unavailable("model_loading", "the model is still loading")
		if e := s.engine.Load(); e != nil {
			f = handle(e, w, r)
		}
		if f != nil {
			f.write(w)
		}
	}
}

// waitForHandlers waits until the handlers have written their last pieces.
func (s *server) waitForHandlers() {
	ctx, cancel := context.WithTimeout(context.Background(), handlerGrace)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.active.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *server) health(w http.ResponseWriter, r *http.Request) {
	if s.engine.Load() == nil {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (s *server) version(w http.ResponseWriter, r *http.Request) {
	v := "devel"
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		v = strings.Trim(b.Main.Version, "()")
	}
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{"ember " + v})
}

func (s *server) scrape(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var l *loop
	if e := s.engine.Load(); e != nil {
		l = e.loop
	}
	s.metrics.write(w, s.o.Names[0], l)
}

type modelCard struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	OwnedBy string  `json:"owned_by"`
	Root    string  `json:"root"`
	Parent  *string `json:"parent"`
	MaxLen  int     `json:"max_model_len"`
}

func (s *server) modelCards(e *engine) []modelCard {
	var out []modelCard
	for _, n := range s.o.Names {
		out = append(out, modelCard{ID: n, Object: "model", Created: s.created, OwnedBy: "thaw", Root: s.o.Names[0], MaxLen: e.maxLen})
	}
	for _, a := range s.adapters.loaded() {
		out = append(out, modelCard{ID: a.name, Object: "model", Created: s.created, OwnedBy: "thaw", Root: a.path, Parent: &s.o.Names[0],
			MaxLen: e.maxLen})
	}
	return out
}

func (s *server) models(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	writeJSON(w, http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", s.modelCards(e)})
	return nil
}

func (s *server) model(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	name := r.PathValue("name")
	for _, c := range s.modelCards(e) {
		if c.ID == name {
			writeJSON(w, http.StatusOK, c)
			return nil
		}
	}
	return noModel(name)
}

// checkModel returns the adapter that a request's model names, nil for the model itself,
// or the error of an unknown name. No name is the model, as in vLLM.
func (s *server) checkModel(model string) (*llama.Adapter, *failure) {
	if model == "" || slices.Contains(s.o.Names, model) {
		return nil, nil
	}
	if a := s.adapters.lookup(model); a != nil {
		return a, nil
	}
	return nil, noModel(model)
}

func noModel(model string) *failure {
	return &failure{http.StatusNotFound, "The model `" + strings.ToValidUTF8(model, "\uFFFD") + "` does not exist.", "invalid_request_error",
		"model", "model_not_found"}
}

var validID = regexp.MustCompile(`^[a-zA-Z0-9_.:-]{1,128}$`)

// requestID is the caller's X-Request-Id where it can be part of an id, or a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); validID.MatchString(id) {
		return id
	}
	return rand.Text()
}

// failure is an answer in OpenAI's error shape.
type failure struct {
	status  int
	message string
	kind    string
	param   string
	code    string
}

func (f *failure) Error() string { return f.message }

// invalidRequest is the answer to a request that can never be served.
func invalidRequest(param, code, format string, a ...any) *failure {
	return &failure{http.StatusBadRequest, fmt.Sprintf(format, a...), "invalid_request_error", param, code}
}

// unavailable is the answer to a request that may be repeated.
func unavailable(code, message string) *failure {
	return &failure{http.StatusServiceUnavailable, message, "server_error", "", code}
}

type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

func (f *failure) body() (b errorBody) {
	b.Error.Message, b.Error.Type = f.message, f.kind
	if f.param != "" {
		b.Error.Param = &f.param
	}
	if f.code != "" {
		b.Error.Code = &f.code
	}
	return b
}

func (f *failure) write(w http.ResponseWriter) { writeJSON(w, f.status, f.body()) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v, json.FormatNilSliceAsNull(true))
	if err != nil { // impossible: all text is valid UTF-8
		http.Error(w, "encoding failed", http.StatusInternalServerError)
		return
	}
	// Bounds the handler of a client that does not read.
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeBound))
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b) // the context reports a client that has gone
}
