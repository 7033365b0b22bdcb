package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// TestRefusedForGood: an agent that the server knows no more ends with the server's words;
// what may change is tried again, and the log says whether the server was reached.
func TestRefusedForGood(t *testing.T) {
	for _, x := range []struct {
		status int
		code   string
		log    string // "": it ends
	}{
		{403, "agent_removed", ""},
		{403, "wrong_agent", ""},
		{403, "", "refuses the heartbeat"},
		{400, "invalid_value", "refuses the heartbeat"},
		{409, "conflict", "refuses the heartbeat"},
		{500, "internal_error", "cannot be reached"},
		{502, "", "cannot be reached"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(x.status)
			fmt.Fprintf(w, `{"error":{"code":%q,"message":"thus it is"}}`, x.code)
		}))
		var log testkit.Buffer
		j := NewJoin(srv.URL, nil, nil, slog.New(slog.NewTextHandler(&log, nil)))
		j.Push(functions.Heartbeat{AgentID: "n"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		if x.log == "" {
			if err := <-done; !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "thus it is") {
				t.Errorf("%+v: %v", x, err)
			}
		} else {
			testkit.Eventually(t, "a line of the log", func() (bool, string) { return strings.Contains(log.String(), x.log), log.String() })
			cancel()
			if err := <-done; err != nil {
				t.Errorf("%+v: %v", x, err)
			}
		}
		cancel()
		srv.Close()
	}
}
