package socket

import (
	"cmp"
	"encoding/json/v2"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/router/intents"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Path is what the paths of sockets begin with; the rest is the client_id.
const Path = "/ws/"

// Options of a Server. Generate, Caller and Decide must be set.
type Options struct {
	// Generate is the handler of the data path.
	Generate httpserver.Handler
	// Caller is the identity of a client; header returns the value of a field that it sent.
	Caller func(header func(name string) string) (auth.Identity, *openai.Error)
	// Decide decides what a request would be sent to, and sends and records nothing. typed
	// remembers the text between decisions; nil: nothing does.
	Decide func(id auth.Identity, router, path string, header func(string) string, body []byte, typed *intents.Typed) (functions.RouteRecord,
		*openai.Error)
	// Ahead makes targets ready that a decision is sure of; nil: none is.
	Ahead *Ahead
	// Sockets bounds the open sockets, and SocketsOfKey those of one key; 65,536 and all.
	Sockets, SocketsOfKey int
	// Idle bounds the silence of a client; 1 h.
	Idle time.Duration
	// Ping is the time between pings; 30 s.
	Ping time.Duration
	// Log gets a line per socket that was ended for its faults; nil is silence.
	Log *slog.Logger
	// Now is the clock; time.Now.
	Now func() time.Time
}

// Server serves sockets. Its methods may be called concurrently.
type Server struct {
	o        Options
	sessions sessions

	mu   sync.Mutex
	open map[string]int // sockets by key
	all  int
}

// New makes a server; it starts nothing.
func New(o Options) *Server {
	o.Sockets = cmp.Or(o.Sockets, 65_536)
	o.SocketsOfKey = cmp.Or(o.SocketsOfKey, o.Sockets)
	o.Idle, o.Ping = cmp.Or(o.Idle, time.Hour), cmp.Or(o.Ping, 30*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Server{o: o, sessions: sessions{max: 64 << 20}, open: map[string]int{}}
}

// Upgrades reports whether requests for a path may ask for a WebSocket.
func Upgrades(path string) bool { return strings.HasPrefix(path, Path) }

// ServesPath reports whether a path is this server's.
func ServesPath(path string) bool { return Upgrades(path) || path == predictPath || path == healthPath }

// TakesOrigins reports whether pages of the origins that the operator named may use a path.
func TakesOrigins(path string) bool { return Upgrades(path) || path == predictPath }

const (
	predictPath = "/predict"
	healthPath  = "/health"
)

// Serve answers a request for a path of this server. It is a [httpserver.Handler].
func (s *Server) Serve(req *httpserver.Request, res *httpserver.Response) {
	var e *openai.Error
	switch req.Path {
	case predictPath:
		e = s.predict(req, res)
	case healthPath:
		e = serveHealth(req, res)
	default:
		if e = s.upgrade(req, res); e != nil {
			res.Set("sec-websocket-version", websocketVersion)
		}
	}
	if e != nil {
		res.Set("x-request-id", openai.NewID())
		res.Refuse(e)
	}
}

// upgrade checks the request, the key and the bounds, and then the connection is a socket.
func (s *Server) upgrade(req *httpserver.Request, res *httpserver.Response) *openai.Error {
	o, e := s.check(req)
	if e != nil {
		return e
	}
	res.Upgrade = func(u *httpserver.Upgraded) { // after this handler, whose request is over
		if e := s.enter(o.account()); e != nil {
			u.Refuse(e)
			return
		}
		defer s.leave(o.account())
		o.run(u)
	}
	return nil
}

// enter counts a socket, or refuses it.
func (s *Server) enter(account string) *openai.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.all >= s.o.Sockets:
		return openai.New(openai.QueueFull, "The server has as many sockets as it may.").After(5 * time.Second)
	case s.open[account] >= s.o.SocketsOfKey:
		return openai.New(openai.RateLimitExceeded, "This key has as many sockets as one may.").After(5 * time.Second)
	}
	s.all++
	s.open[account]++
	return nil
}

func (s *Server) leave(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.open[account]--; s.open[account] == 0 {
		delete(s.open, account)
	}
}

// check checks a request before its upgrade.
func (s *Server) check(req *httpserver.Request) (*socket, *openai.Error) {
	client, _ := strings.CutPrefix(req.Path, Path)
	switch {
	case !req.AsksWebSocket:
		return nil, openai.New(openai.InvalidRequest,
			"A WebSocket is served here: ask for one by GET with Upgrade: websocket, which a proxy has to pass on over HTTP/1.1.")
	case req.Draining():
		return nil, openai.New(openai.ShuttingDown, "")
	case !openai.ValidID(client):
		return nil, openai.New(openai.InvalidValue, "The path is /ws/CLIENT_ID, of up to 128 letters, digits, dots, hyphens and underscores.")
	}
	router, ok := readQuery(req.Query)
	if !ok {
		return nil, openai.New(openai.InvalidValue, "The query is not one this endpoint knows; it takes: router. A key belongs into "+
			"Authorization or the subprotocol thaw.key.KEY, never into a URL.")
	}
	h, e := readHandshake(req)
	if e != nil {
		return nil, e
	}
	if secret := auth.Secret(req.Header); h.authorization == "" && secret != "" {
		h.authorization = "Bearer " + strings.Clone(secret)
	}
	o := &socket{s: s, handshake: h, router: router}
	if o.id, e = s.o.Caller(h.field); e != nil {
		return nil, e
	}
	o.key = sessionKey{o.id.Team, o.id.KeyID, strings.Clone(client)}
	req.Fields(func(f httpserver.Field) bool {
		if isKept(f.Name) {
			o.fields = append(o.fields, httpserver.Field{Name: strings.Clone(f.Name), Value: strings.Clone(f.Value)})
		}
		return true
	})
	body, _ := o.body("", nil)
	if _, e := s.o.Decide(o.id, router, generatePath, o.header, body, nil); e != nil {
		return nil, e
	}
	return o, nil
}

// generatePath is the endpoint that generations use.
const generatePath = "/v1/chat/completions"

// readQuery reads ?router=NAME.
func readQuery(query string) (router string, ok bool) {
	if query == "" {
		return functions.AutoRouter, true
	}
	router, ok = strings.CutPrefix(query, "router=")
	if !ok || router == "" || strings.ContainsAny(router, "&+") {
		return "", false
	}
	router = strings.NewReplacer("%2F", "/", "%2f", "/").Replace(router)
	return strings.Clone(router), !strings.Contains(router, "%")
}

// isKept reports whether a field of the handshake goes on with each generation.
func isKept(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "authorization", "x-api-key", "api-key", "cookie", "connection", "upgrade", "host", "origin", "content-length",
		"content-type", "x-stainless-read-timeout", "x-stainless-timeout", "thaw-session", "x-request-id", "x-client-request-id":
		return false
	}
	return !strings.HasPrefix(name, "sec-")
}

// header is a field of each of the socket's requests.
func (s *socket) header(name string) string {
	if strings.EqualFold(name, "thaw-session") { // which the fields of the handshake leave out
		return s.key.client
	}
	return httpserver.FieldOf(s.fields, name)
}

// body is that of a chat request with a text, or with messages.
func (s *socket) body(text string, messages any) ([]byte, error) {
	type turn struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	if messages == nil {
		messages = []turn{{"user", text}}
	}
	return json.Marshal(struct {
		Model    string          `json:"model"`
		Messages any             `json:"messages"`
		Stream   bool            `json:"stream"`
		Options  map[string]bool `json:"stream_options"`
	}{s.router, messages, true, map[string]bool{"include_usage": true}})
}
