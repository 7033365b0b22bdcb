package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/socket"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/local"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// newSockets makes the server of typing-time sessions on a data path.
func newSockets(act *activator.Activator, backend *local.Local, metrics *telemetry.Registry, sockets, ofKey int,
	log *slog.Logger) *socket.Server {
	return socket.New(socket.Options{
		Generate: act.Serve, Caller: act.Caller, Decide: act.DryRouteTyped, Sockets: sockets, SocketsOfKey: ofKey, Log: log,
		Ahead: &socket.Ahead{
			Find:        func(id auth.Identity, rec *functions.RouteRecord) socket.Outlook { return outlook(act, id, rec) },
			LoadAdapter: backend.LoadAdapter, Prewarm: backend.PrewarmBriefly, EndPrewarm: backend.EndPrewarm,
			Count: func(metric string, value float64, labels ...string) { metrics.Series(metric, labels...)(value) },
			Now:   time.Now,
		},
	})
}

// outlook is what could be made ready for a decision: nothing of a Remote.
func outlook(act *activator.Activator, id auth.Identity, rec *functions.RouteRecord) (o socket.Outlook) {
	x := act.Foresee(id, rec)
	f := x.Snapshot
	if f == nil || f.Remote != nil || f.Failure != nil {
		return o
	}
	o = socket.Outlook{Sure: x.Conditional, Function: x.Function, Cold: len(f.Replicas) == 0}
	if f.ColdStart != nil {
		o.Start = time.Duration(f.ColdStart.Total * float64(time.Second))
	}
	if a := x.Function.Adapter; a != "" && !o.Cold {
		for i := range f.Replicas {
			if slices.Contains(f.Replicas[i].Adapters, a) {
				return o
			}
		}
		o.Replica = f.Replicas[0].ID
	}
	return o
}

// givenRemotes are the Remotes that the environment names: GATEWAY_SGLANG_ROUTER_URL is one
// that the operator runs, so internal data may go there.
func givenRemotes(getenv func(string) string) map[string][]byte {
	const name = "GATEWAY_SGLANG_ROUTER_URL"
	address := getenv(name)
	if address == "" {
		return nil
	}
	if u, err := url.Parse(address); err == nil && strings.Trim(u.Path, "/") == "" {
		address = strings.TrimSuffix(address, "/") + "/v1"
	}
	return map[string][]byte{name: fmt.Appendf(nil, `apiVersion: thaw.dev/v1
kind: Remote
metadata: {name: sglang-router}
spec: {url: %q, allow: internal}
`, address)}
}
