package enroll

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/mtls"
)

const (
	// ServerName is the name in the server's certificate.
	ServerName = "server.thaw"
	// agentSuffix follows an agent's id in the name of its certificate.
	agentSuffix = ".agents.thaw"

	// TokenPrefix begins a join token.
	TokenPrefix = "thaw-join-"
	// DefaultExpiry is how long a join token may be used.
	DefaultExpiry = time.Hour
	maxExpiry     = 7 * 24 * time.Hour
	maxTokens     = 1024 // that may be used still
	maxAgents     = 4096
)

// AgentName is the name in the certificate of an agent.
func AgentName(id string) string { return id + agentSuffix }

// Options of a Server. Those without "may be nil" must be set.
type Options struct {
	Dir string // of the authority and the list of agents
	// Heartbeat handles a heartbeat; sameMachine: it came over loopback.
	Heartbeat func(hb functions.Heartbeat, sameMachine bool) error
	Removed   func(agent string)                  // called after an agent was removed; may be nil
	Peers     func(agent string) []functions.Peer // the other nodes that serve blocks; may be nil
	Own       func() string                       // id of the server's own node, which no agent may have; nil: none
	Log       *slog.Logger
	Now       func() time.Time // default time.Now
}

// Server is the server's end. Its methods may be called concurrently.
type Server struct {
	o  Options
	ca *mtls.CA

	mu     sync.Mutex
	tokens map[[sha256.Size]byte]*joinToken // by the digest of their secret
	agents map[string]functions.JoinedAgent // by id, as in the file
	former []functions.JoinedAgent          // removed or replaced, whose certificates may be valid still, as in the file
	logged map[string]time.Time             // by id, when a refused heartbeat was logged last
}

// joinToken is a token that was made and has not expired.
type joinToken struct {
	agent   string // the only id that may join with it; "" is any that is not taken
	expires time.Time
	key, id string // digest of the key that used it, and the id that joined with it; "" before
}

// Open reads the authority and the agents of a folder, or makes them. It starts nothing.
func Open(o Options) (*Server, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	ca, err := mtls.OpenCA(o.Dir, o.Now())
	if err != nil {
		return nil, fmt.Errorf("agents: %w", err)
	}
	s := &Server{o: o, ca: ca, tokens: map[[sha256.Size]byte]*joinToken{}, agents: map[string]functions.JoinedAgent{},
		logged: map[string]time.Time{}}
	b, err := os.ReadFile(s.file())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var list []functions.JoinedAgent
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("agents: %s: %w; bring it back from a backup, or move it away: every agent has to join again", s.file(), err)
	}
	for _, a := range list {
		if a.Removed.IsZero() {
			s.agents[a.ID] = a
		} else {
			s.former = append(s.former, a)
		}
	}
	return s, nil
}

func (s *Server) file() string { return filepath.Join(s.o.Dir, "agents.json") }

// save writes the list of agents, and then uses it. mu must be held.
func (s *Server) save(agents map[string]functions.JoinedAgent) error {
	former := s.withFormer(agents)
	b, err := json.MarshalIndent(slices.Concat(former, sortedAgents(agents)), "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(s.file(), append(b, '\n'), 0o600); err != nil {
		return err
	}
	s.agents, s.former = agents, former
	return nil
}

// withFormer returns the former agents once agents is the list: those of now that it lacks
// are added, and those whose key is back or whose certificate has expired are left out.
func (s *Server) withFormer(agents map[string]functions.JoinedAgent) []functions.JoinedAgent {
	now, keys := s.o.Now(), map[string]bool{}
	for _, a := range agents {
		keys[a.Key] = true
	}
	former := slices.Clone(s.former)
	for _, id := range slices.Sorted(maps.Keys(s.agents)) {
		a := s.agents[id]
		a.Removed = now.UTC().Truncate(time.Second)
		former = append(former, a)
	}
	former = slices.DeleteFunc(former, func(a functions.JoinedAgent) bool { return keys[a.Key] || now.Sub(a.Removed) > mtls.Valid })
	return former[max(0, len(former)-maxAgents):]
}

func (s *Server) removedKeys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return functions.ConvertAll(s.former, func(a functions.JoinedAgent) string { return a.Key })
}

// NewToken makes a join token for an agent, or with "" for any whose id is not taken. 0 is
// DefaultExpiry. Tokens end with the process.
func (s *Server) NewToken(agent string, expiry time.Duration) (token string, expires time.Time, err error) {
	expiry = cmp.Or(expiry, DefaultExpiry)
	if expiry < 0 || expiry > maxExpiry {
		return "", expires, fmt.Errorf("a join token lasts more than 0 and at most %v", maxExpiry)
	}
	if agent != "" && !functions.IsLabel(agent) {
		return "", expires, fmt.Errorf("%.80q is no name of an agent: a DNS label", agent)
	}
	if agent != "" && s.isOwn(agent) {
		return "", expires, fmt.Errorf("%s is the name of the server's own node: an agent has another", agent)
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails: the runtime ends the program instead
	text := base64.RawURLEncoding.EncodeToString(secret)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Now()
	maps.DeleteFunc(s.tokens, func(_ [sha256.Size]byte, t *joinToken) bool { return !now.Before(t.expires) })
	if len(s.tokens) >= maxTokens {
		return "", expires, fmt.Errorf("there are %d join tokens already: wait until some have expired", maxTokens)
	}
	expires = now.Add(expiry)
	s.tokens[sha256.Sum256([]byte(text))] = &joinToken{agent: agent, expires: expires}
	return TokenPrefix + text + "." + s.ca.Fingerprint(), expires, nil
}

func (s *Server) isOwn(id string) bool { return s.o.Own != nil && s.o.Own() == id }

// Agents lists the agents that have joined, by id.
func (s *Server) Agents() []functions.JoinedAgent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sortedAgents(s.agents)
}

func sortedAgents(agents map[string]functions.JoinedAgent) []functions.JoinedAgent {
	return functions.ConvertAll(slices.Sorted(maps.Keys(agents)), func(id string) functions.JoinedAgent { return agents[id] })
}

// Remove ends the right of an agent to speak to the server, and the tokens that its key has
// used; functions.ErrNotFound.
func (s *Server) Remove(id string) error {
	err := s.remove(id)
	if err == nil && s.o.Removed != nil {
		s.o.Removed(id)
	}
	return err
}

func (s *Server) remove(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	removed, ok := s.agents[id]
	if !ok {
		return functions.ErrNotFound
	}
	rest := maps.Clone(s.agents)
	delete(rest, id)
	if err := s.save(rest); err != nil {
		return err
	}
	delete(s.logged, id)
	maps.DeleteFunc(s.tokens, func(_ [sha256.Size]byte, t *joinToken) bool { return t.key == removed.Key })
	s.o.Log.Info("agent removed", "agent", id)
	return nil
}

// refusal is an answer other than success.
type refusal struct {
	status        int
	code, message string
}

func (r *refusal) Error() string { return r.message }

// admit exchanges a join token for the certificate of an agent.
func (s *Server) admit(secret, id string, request *x509.CertificateRequest) ([]byte, error) {
	text, _, _ := strings.Cut(strings.TrimPrefix(secret, TokenPrefix), ".")
	key, now := digest(request.RawSubjectPublicKeyInfo), s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tokens[sha256.Sum256([]byte(text))]
	switch known, taken := s.agents[id]; {
	case t == nil || !now.Before(t.expires) || t.key != "" && (t.key != key || t.id != id || s.agents[id].Key != key):
		return nil, &refusal{401, "invalid_join_token", "the join token is unknown, expired or used: thaw agents token makes another"}
	case !functions.IsLabel(id):
		return nil, &refusal{400, "invalid_value", fmt.Sprintf("the agent's name %.80q is no DNS label: --name", id)}
	case s.isOwn(id):
		return nil, &refusal{409, "agent_exists",
			fmt.Sprintf("%s is the name of the server's own node: give the agent another with --name; the token is still good", id)}
	case t.agent != "" && t.agent != id:
		return nil, &refusal{403, "wrong_agent", fmt.Sprintf("the join token is for the agent %s, not for %s", t.agent, id)}
	case taken && known.Key != key && t.agent == "":
		return nil, &refusal{409, "agent_exists",
			fmt.Sprintf("there is an agent %s already: another --name, or a token from thaw agents token --name %s to replace it", id, id)}
	case !taken && len(s.agents) >= maxAgents:
		return nil, &refusal{409, "too_many_agents", fmt.Sprintf("%d agents have joined already: thaw agents rm ID", maxAgents)}
	}
	cert, err := s.ca.Sign(request.PublicKey, AgentName(id), now)
	if err != nil {
		return nil, err
	}
	with := maps.Clone(s.agents)
	with[id] = functions.JoinedAgent{ID: id, Key: key, Joined: now.UTC().Truncate(time.Second)}
	if err := s.save(with); err != nil {
		return nil, err
	}
	t.key, t.id = key, id
	s.o.Log.Info("agent joined", "agent", id)
	return cert, nil
}

// identify returns the id of the agent whose certificate a connection shows.
func (s *Server) identify(shown *tls.ConnectionState) (string, error) {
	id, ok := strings.CutSuffix(mtls.Name(shown), agentSuffix)
	if !ok {
		return "", &refusal{401, "certificate_required", "this wants the certificate of an agent: join with a token first"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.agents[id]; !ok || a.Key != keyDigest(shown) {
		return "", &refusal{403, "agent_removed",
			"the agent " + id + " was removed from the server, or replaced: it has to join again with a token"}
	}
	return id, nil
}

// AgentTLS returns the configuration of connections to an agent: only the process that
// joined under that id can answer.
func (s *Server) AgentTLS(id string) *tls.Config {
	own := func() (*mtls.Identity, error) { return s.ca.Identity(ServerName, s.o.Now()) }
	identity, err := own()
	if err != nil { // no certificate: the agent refuses the connection
		s.o.Log.Error("the server's certificate cannot be made", "error", err)
		identity = &mtls.Identity{Roots: x509.NewCertPool()}
	}
	config := mtls.Client(identity, AgentName(id))
	config.Certificates = nil
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		identity, err := own()
		if err != nil {
			return nil, err
		}
		return &identity.Cert, nil
	}
	config.VerifyConnection = func(shown tls.ConnectionState) error {
		_, err := s.identify(&shown)
		return err
	}
	return config
}

// serverTLS is the configuration of the port where agents come in, with or without a
// certificate.
func (s *Server) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			id, err := s.ca.Identity(ServerName, s.o.Now())
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{id.Cert},
				ClientCAs: id.Roots, ClientAuth: tls.VerifyClientCertIfGiven, SessionTicketsDisabled: true,
			}, nil
		},
	}
}

func (s *Server) peers(agent string) []functions.Peer {
	if s.o.Peers == nil {
		return []functions.Peer{}
	}
	return append([]functions.Peer{}, s.o.Peers(agent)...)
}
