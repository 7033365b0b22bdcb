package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"

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
	families, err := a.o.Metrics.Gather()
	if err != nil && len(families) == 0 {
		return openai.New(openai.InternalError, "")
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if team := x.team(); team != "" {
			f.Metric = slices.DeleteFunc(f.Metric, func(m metric) bool { return !metricOfTeam(m, team) })
			if len(f.Metric) == 0 {
				continue
			}
		}
		if err := enc.Encode(f); err != nil {
			return openai.New(openai.InternalError, "")
		}
	}
	res.Body = b.Bytes()
	res.Set("content-type", string(format))
	return nil
}

// metricOfTeam: a metric that names another team, or a function of one, is not for
// this team's key.
func metricOfTeam(m metric, team string) bool {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "team":
			if l.GetValue() != team {
				return false
			}
		case "model", "function":
			if t, _, full := strings.Cut(l.GetValue(), "/"); full && t != team {
				return false
			}
		}
	}
	return true
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
	if !x.known && !a.open() {
		r.Reasons = nil
	}
	return writeJSON(res, status, r)
}

func (a *API) openapi(_ *exchange, res *httpserver.Response) *openai.Error {
	res.Body = a.spec
	res.Set("content-type", "application/json")
	return nil
}
