package api

import (
	"cmp"
	"errors"
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

func (a *API) keys(x *exchange, res *httpserver.Response) *openai.Error {
	return writeJSON(res, List[auth.Key]{orEmpty(a.o.Keys.List(x.query["team"]))})
}

func (a *API) createKey(_ *exchange, k KeyRequest, res *httpserver.Response) *openai.Error {
	k.Team = cmp.Or(k.Team, functions.DefaultTeam)
	if !functions.IsLabel(k.Team) {
		return openai.New(openai.InvalidValue, "A team is a DNS label: lower-case letters, digits and '-'.").With("team")
	}
	secret, key, err := a.o.Keys.Create(k.Team, k.Name, k.Admin)
	if err != nil {
		return openai.New(openai.InvalidValue, "The key was not made: "+err.Error())
	}
	a.o.Log.Info("key made", "id", key.ID, "team", key.Team, "admin", key.Admin)
	return writeJSON(res, NewKey{Key: key, Secret: secret})
}

func (a *API) deleteKey(x *exchange, res *httpserver.Response) *openai.Error {
	err := a.o.Keys.Delete(x.args[0])
	if errors.Is(err, auth.ErrNoKey) {
		return notFound("The key " + x.args[0])
	}
	if err != nil {
		return openai.New(openai.InternalError, "The key was not ended: "+err.Error())
	}
	a.o.Log.Info("key ended", "id", x.args[0])
	return nil
}

func (a *API) agents(_ *exchange, res *httpserver.Response) *openai.Error {
	return writeJSON(res, List[functions.JoinedAgent]{a.o.Agents.Agents()})
}

func (a *API) createJoinToken(_ *exchange, r JoinTokenRequest, res *httpserver.Response) *openai.Error {
	secret, expires, err := a.o.Agents.NewToken(r.Agent, r.Expiry.Std())
	if err != nil {
		return openai.New(openai.InvalidValue, "The join token was not made: "+err.Error()+".")
	}
	a.o.Log.Info("join token made", "agent", r.Agent, "expires", expires)
	return writeJSON(res, JoinToken{Token: secret, Agent: r.Agent, Expires: expires.UTC().Truncate(time.Second), Server: a.o.AgentsURL})
}

func (a *API) removeAgent(x *exchange, res *httpserver.Response) *openai.Error {
	err := a.o.Agents.Remove(x.args[0])
	if errors.Is(err, functions.ErrNotFound) {
		return notFound("The agent " + x.args[0])
	}
	if err != nil {
		return openai.New(openai.InternalError, "The agent was not removed: "+err.Error())
	}
	return nil
}

func (a *API) metrics(x *exchange, res *httpserver.Response) *openai.Error {
	text, contentType, err := a.o.Metrics(x.team())
	if err != nil {
		return openai.New(openai.InternalError, "")
	}
	res.Body = text
	res.Set("content-type", contentType)
	return nil
}

func (a *API) readyz(x *exchange, res *httpserver.Response) *openai.Error {
	var r Readiness
	r.Reasons = a.o.Ready()
	if x.Draining() {
		r.Reasons = append(r.Reasons, "shutting down")
	}
	r.Ready = len(r.Reasons) == 0
	if !r.Ready {
		res.Status = 503
	}
	if !x.authenticated && !a.open() {
		r.Reasons = nil
	}
	return writeJSON(res, r)
}
