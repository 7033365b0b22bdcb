package api

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// textHandler is a handler that answers with what body returns.
func textHandler(contentType string, body func() []byte) handler {
	return func(_ *exchange, res *httpserver.Response) *openai.Error {
		res.Body = body()
		res.Set("content-type", contentType)
		return nil
	}
}

// accessHandlers answers for keys and for agents of other machines.
type accessHandlers struct {
	keys      *auth.KeyStore
	agents    Agents
	agentsURL string // where they join
	log       *slog.Logger
}

func (a *accessHandlers) keyList(x *exchange, res *httpserver.Response) *openai.Error {
	return writeJSON(res, List[auth.Key]{orEmpty(a.keys.List(x.query["team"]))})
}

func (a *accessHandlers) createKey(_ *exchange, r KeyRequest, res *httpserver.Response) *openai.Error {
	r.Team = cmp.Or(r.Team, functions.DefaultTeam)
	if !functions.IsLabel(r.Team) {
		return openai.New(openai.InvalidValue,
			"The team `"+functions.Clip(r.Team)+"` is no DNS label: lower-case letters, digits and '-'.").With("team")
	}
	secret, key, err := a.keys.Create(r.Team, r.Name, r.Admin)
	if err != nil {
		return openai.New(openai.InvalidValue, "The key was not made: "+err.Error())
	}
	a.log.Info("key made", "id", key.ID, "team", key.Team, "admin", key.Admin)
	return writeJSON(res, NewKey{Key: key, Secret: secret})
}

func (a *accessHandlers) deleteKey(x *exchange, res *httpserver.Response) *openai.Error {
	err := a.keys.Delete(x.args[0])
	if errors.Is(err, auth.ErrNoKey) {
		return openai.New(openai.NotFound, "The key "+x.args[0]+" does not exist: thaw keys list has the ids.")
	}
	if err != nil {
		return openai.New(openai.InternalError, "The key was not ended: "+err.Error())
	}
	a.log.Info("key ended", "id", x.args[0])
	return nil
}

func (a *accessHandlers) agentList(_ *exchange, res *httpserver.Response) *openai.Error {
	return writeJSON(res, List[functions.JoinedAgent]{a.agents.Agents()})
}

func (a *accessHandlers) createToken(_ *exchange, r JoinTokenRequest, res *httpserver.Response) *openai.Error {
	secret, expires, err := a.agents.NewToken(r.Agent, r.Expiry.Std())
	if err != nil {
		return openai.New(openai.InvalidValue, "The join token was not made: "+err.Error()+".")
	}
	a.log.Info("join token made", "agent", r.Agent, "expires", expires)
	return writeJSON(res, JoinToken{Token: secret, Agent: r.Agent, Expires: expires.UTC().Truncate(time.Second), Server: a.agentsURL})
}

func (a *accessHandlers) removeAgent(x *exchange, res *httpserver.Response) *openai.Error {
	err := a.agents.Remove(x.args[0])
	if errors.Is(err, functions.ErrNotFound) {
		return notFound("The agent " + x.args[0])
	}
	if err != nil {
		return openai.New(openai.InternalError, "The agent was not removed: "+err.Error())
	}
	return nil
}

// metricsHandler is a handler that answers with the metrics that the caller may read.
func metricsHandler(read func(team string) (text []byte, contentType string, err error)) handler {
	return func(x *exchange, res *httpserver.Response) *openai.Error {
		text, contentType, err := read(x.team())
		if err != nil {
			return openai.New(openai.InternalError, "")
		}
		res.Body = text
		res.Set("content-type", contentType)
		return nil
	}
}

// readinessHandler is a handler that answers whether requests are accepted, and the callers who
// may read why not.
func readinessHandler(missing func() []string, access *Access) handler {
	return func(x *exchange, res *httpserver.Response) *openai.Error {
		r := Readiness{Reasons: missing()}
		if x.Draining() {
			r.Reasons = append(r.Reasons, "shutting down")
		}
		r.Ready = len(r.Reasons) == 0
		if !r.Ready {
			res.Status = 503
		}
		if !x.authenticated && !access.open() {
			r.Reasons = nil
		}
		return writeJSON(res, r)
	}
}
