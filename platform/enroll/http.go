package enroll

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/net/netutil"

	"github.com/thaw-dev/thaw/functions"
)

const (
	joinPath      = "/api/v1/agents/join"
	renewPath     = "/api/v1/agents/renew"
	heartbeatPath = "/api/v1/heartbeat"

	maxJoin      = 16 << 10 // bytes of a body without a certificate
	maxHeartbeat = 4 << 20
	maxConns     = 2 * maxAgents
)

type joinRequest struct {
	Token   string `json:"token"`
	ID      string `json:"id"`
	Request []byte `json:"request"` // a certificate request, as DER
}

// joinReply is the answer, also to a renewal.
type joinReply struct {
	Certificate string `json:"certificate"` // PEM
	Authority   string `json:"authority"`   // PEM
}

// Serve serves the agents' port until ctx ends. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 8 << 10,
		ErrorLog:       slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	err := srv.Serve(tls.NewListener(netutil.LimitListener(l, maxConns), s.serverTLS()))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeHTTP answers agents; the connection must be TLS.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve := map[string]func(*http.Request) (any, error){joinPath: s.join, renewPath: s.renew, heartbeatPath: s.heartbeat}[r.URL.Path]
	switch {
	case serve == nil:
		writeError(w, &refusal{404, "unknown_endpoint", "agents join and send heartbeats here; the API is at the server's other port"})
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		writeError(w, &refusal{405, "method_not_allowed", "Use POST here."})
		return
	}
	reply, err := serve(r)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(reply) // an error is the client's departure
}

func (s *Server) join(r *http.Request) (any, error) {
	var in joinRequest
	if err := readJSON(r, maxJoin, &in); err != nil {
		return nil, err
	}
	request, err := x509.ParseCertificateRequest(in.Request)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		return nil, &refusal{400, "invalid_value", "the certificate request: " + err.Error()}
	}
	cert, err := s.admit(in.Token, in.ID, request)
	if err != nil {
		return nil, err
	}
	return joinReply{Certificate: string(cert), Authority: string(s.ca.Root())}, nil
}

func (s *Server) renew(r *http.Request) (any, error) {
	id, err := s.identify(r.TLS)
	if err != nil {
		return nil, err
	}
	cert, err := s.ca.Sign(r.TLS.PeerCertificates[0].PublicKey, AgentName(id), s.o.Now())
	return joinReply{Certificate: string(cert), Authority: string(s.ca.Root())}, err
}

func (s *Server) heartbeat(r *http.Request) (any, error) {
	id, err := s.identify(r.TLS)
	if err != nil {
		return nil, err
	}
	var hb functions.Heartbeat
	if err := readJSON(r, maxHeartbeat, &hb); err != nil {
		return nil, err
	}
	if hb.AgentID != id {
		return nil, &refusal{403, "wrong_agent",
			"the certificate is that of the agent " + id + ", and the heartbeat that of " + functions.Clip(hb.AgentID)}
	}
	if s.isOwn(id) { // it joined when the server had another name
		return nil, &refusal{403, "wrong_agent", id + " is the name of the server's own node: the agent has to join again, with another --name"}
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	switch err := s.o.Heartbeat(hb, err == nil && from.Addr().Unmap().IsLoopback()); {
	case errors.Is(err, functions.ErrStaleEpoch):
		return nil, &refusal{409, "conflict", err.Error()}
	case err != nil:
		s.logRefused(id, err)
		return nil, &refusal{400, "invalid_value", "the heartbeat is refused: " + err.Error()}
	}
	return functions.HeartbeatReply{Peers: s.peers(id), Removed: s.removedKeys()}, nil
}

// logRefused logs why a heartbeat of an agent is refused, at most once a minute.
func (s *Server) logRefused(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.o.Now(); now.Sub(s.logged[id]) >= time.Minute {
		s.logged[id] = now
		s.o.Log.Warn("a heartbeat is refused", "agent", id, "error", err)
	}
}

// readJSON reads a body. Unknown fields pass: an agent may be newer than its server.
func readJSON(r *http.Request, most int64, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	switch {
	case err != nil:
		return &refusal{400, "invalid_request", "the body broke off"}
	case int64(len(b)) > most:
		return &refusal{413, "request_too_large", "the body is too long"}
	}
	if err := json.Unmarshal(b, v); err != nil {
		return &refusal{400, "invalid_json", "the body is not what is expected here: " + err.Error()}
	}
	return nil
}

func writeError(w http.ResponseWriter, err error) {
	e, ok := errors.AsType[*refusal](err)
	if !ok {
		e = &refusal{500, "internal_error", err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"message": e.message, "code": e.code}})
}
