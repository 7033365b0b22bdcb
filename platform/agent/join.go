package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// Join sends an agent's heartbeats to a server: the newest one, whenever there is one. An
// unreachable server is tried again with pauses up to 5 s; the agent keeps serving
// meanwhile.
type Join struct {
	server  string
	log     *slog.Logger
	pending chan functions.Heartbeat // at most one, the newest
	onPeers func([]functions.Peer)   // gets the other nodes; may be nil
	removed func(keys []string)      // gets the keys of removed agents; may be nil
	http    *http.Client
}

// NewJoin returns a join that has not started. Its Push is the agent's. secure shows the
// agent's certificate (enroll.Identity); nil is plain HTTP, for tests. removed gets the keys
// of removed agents with each reply; it may be nil.
func NewJoin(server string, secure *tls.Config, removed func(keys []string), log *slog.Logger) *Join {
	return &Join{
		server: strings.TrimRight(server, "/"), removed: removed, log: log, pending: make(chan functions.Heartbeat, 1),
		http: &http.Client{Timeout: 5 * time.Second,
			Transport:     &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, TLSClientConfig: secure},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

// Push takes a heartbeat. It is called by one goroutine at a time and does not block.
func (j *Join) Push(hb functions.Heartbeat) { newest.Offer(j.pending, hb) }

const (
	joinFirst = 100 * time.Millisecond
	joinLast  = 5 * time.Second
)

// ErrRefused means that the server knows this agent no more, or under no such name: to go on
// does not help.
var ErrRefused = errors.New("the server refuses this agent")

// Run pushes until ctx ends or the server refuses the agent for good, which is ErrRefused.
func (j *Join) Run(ctx context.Context) error {
	defer j.http.CloseIdleConnections()
	retry := backoff.Backoff{First: joinFirst, Max: joinLast}
	pause := time.Duration(0)
	joined, logged := false, ""
	for {
		var hb functions.Heartbeat
		select {
		case <-ctx.Done():
			return nil
		case hb = <-j.pending:
		}
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
		select {
		case hb = <-j.pending:
		default:
		}
		err := j.send(ctx, hb)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if !joined {
				j.log.Info("joined", "server", j.server)
			}
			joined, logged, pause = true, "", 0
			retry.Reset()
		case errors.Is(err, ErrRefused):
			return err
		default:
			if joined || logged != err.Error() {
				message := "the server cannot be reached; this agent keeps running"
				if errors.Is(err, errHeartbeat) {
					message = "the server refuses the heartbeat; this agent keeps running and tries again"
				}
				j.log.Warn(message, "server", j.server, "error", err)
			}
			joined, logged = false, err.Error()
			pause = retry.Next()
			select { // hb has not been sent yet
			case j.pending <- hb:
			default:
			}
		}
	}
}

// errHeartbeat means that the server answered that it does not take the heartbeat.
var errHeartbeat = errors.New("refused")

func (j *Join) send(ctx context.Context, hb functions.Heartbeat) error {
	res, err := sendJSON(ctx, j.http, "POST", j.server+"/api/v1/heartbeat", hb)
	if err != nil {
		return mtls.Explain(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		code, description := readProblem(res)
		switch {
		case res.StatusCode == 403 && (code == "agent_removed" || code == "wrong_agent"):
			return fmt.Errorf("%w: %s", ErrRefused, description)
		case res.StatusCode/100 == 4:
			return fmt.Errorf("%w: %d %s", errHeartbeat, res.StatusCode, description)
		}
		return fmt.Errorf("%d %s", res.StatusCode, description)
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil || j.onPeers == nil {
		return nil // the heartbeat was taken; the peers come with the next reply
	}
	var reply functions.HeartbeatReply
	if len(raw) > 0 && json.Unmarshal(raw, &reply) != nil {
		return nil
	}
	j.onPeers(reply.Peers)
	if j.removed != nil {
		j.removed(reply.Removed)
	}
	return nil
}
