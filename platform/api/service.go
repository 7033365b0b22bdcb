package api

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

func (a *API) schema(_ *exchange, res *httpserver.Response) *openai.Error {
	res.Body = functions.Schema()
	res.Set("content-type", "application/schema+json")
	return nil
}

func (a *API) keys(x *exchange, res *httpserver.Response) *openai.Error {
	keys := a.o.Keys.List(x.query["team"])
	if keys == nil {
		keys = []auth.Key{}
	}
	return writeJSON(res, 200, List[auth.Key]{keys})
}

func (a *API) createKey(x *exchange, res *httpserver.Response) *openai.Error {
	var k KeyRequest
	if err := decodeBody(x, &k); err != nil {
		return err
	}
	if k.Team == "" {
		k.Team = functions.DefaultTeam
	}
	if !functions.IsLabel(k.Team) {
		return openai.New(openai.InvalidValue, "A team is a DNS label: lower-case letters, digits and '-'.").With("team")
	}
	secret, key, err := a.o.Keys.Create(k.Team, k.Name, k.Admin)
	if err != nil {
		return openai.New(openai.InvalidValue, "The key was not made: "+err.Error())
	}
	a.o.Log.Info("key made", "id", key.ID, "team", key.Team, "admin", key.Admin)
	return writeJSON(res, 201, NewKey{Key: key, Secret: secret})
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
	res.Status = 204
	return nil
}

func (a *API) heartbeat(x *exchange, res *httpserver.Response) *openai.Error {
	if len(x.Body) > maxBody {
		return openai.New(openai.RequestTooLarge, "")
	}
	// Unknown fields pass: an agent may be newer than its server.
	var hb functions.Heartbeat
	if err := json.Unmarshal(x.Body, &hb); err != nil {
		return openai.New(openai.InvalidJSON, "The body is no heartbeat: "+err.Error())
	}
	if !isWord(hb.AgentID) {
		return openai.New(openai.InvalidValue, "An agent's id is letters, digits, '-', '_' and '.'.").With("agent_id")
	}
	switch err := a.o.Heartbeat(hb); {
	case errors.Is(err, functions.ErrStaleEpoch):
		return openai.New(openai.Conflict, err.Error())
	case err != nil:
		return openai.New(openai.InvalidValue, "The heartbeat is refused: "+err.Error())
	}
	reply := functions.HeartbeatReply{Peers: []functions.Peer{}}
	if a.o.Peers != nil {
		reply.Peers = append(reply.Peers, a.o.Peers(hb.AgentID)...)
	}
	return writeJSON(res, http.StatusOK, reply)
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

func (a *API) healthz(_ *exchange, res *httpserver.Response) *openai.Error {
	res.Body = []byte("ok\n")
	res.Set("content-type", "text/plain; charset=utf-8")
	return nil
}

func (a *API) readyz(x *exchange, res *httpserver.Response) *openai.Error {
	var r Readiness
	r.Reasons = a.o.Ready()
	if x.Draining() {
		r.Reasons = append(r.Reasons, "shutting down")
	}
	r.Ready = len(r.Reasons) == 0
	status := 200
	if !r.Ready {
		status = 503
	}
	if !x.authenticated && !a.open() {
		r.Reasons = nil
	}
	return writeJSON(res, status, r)
}

func (a *API) openapi(_ *exchange, res *httpserver.Response) *openai.Error {
	res.Body = a.spec
	res.Set("content-type", "application/json")
	return nil
}
