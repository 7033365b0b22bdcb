package main

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/testkit"
)

// TestLimitsOfTwoActivators: a team's limit is that of both activators, whichever of them it is
// asked at, and all of it is had.
func TestLimitsOfTwoActivators(t *testing.T) {
	if testing.Short() {
		t.Skip("processes")
	}
	r := newTestController(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`))
	}))
	r.node.mu.Lock()
	r.node.auto = true
	r.node.mu.Unlock()
	gates := []*gate{r.gate("a"), r.gate("b")}
	if a := r.chat(gates[0], false, nil); a.status != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	const limit = 30
	team := functions.Team{Metadata: functions.Metadata{Name: "ml"},
		Spec: functions.TeamSpec{Limits: functions.Limits{RequestsPerMinute: limit}}}
	sum := sha256.Sum256([]byte(r.key))
	began := time.Now()
	r.bank.SetLimits(map[ratelimit.Key]int64{{Team: "ml", Kind: ratelimit.Requests}: limit}, began)
	r.hub.SetKeys(controlstream.Keys{Keys: []auth.StoredKey{{Key: auth.Key{ID: "k", Team: "ml"}, Hash: hex.EncodeToString(sum[:])}}, Teams: []functions.Team{team}})
	// Both have heard of it once one of them says how much is left.
	for _, g := range gates {
		testkit.Eventually(t, "the limit is known", func() bool { return r.isLimited(g) })
	}

	admitted, refused := 0, 0
	for i := 0; refused < 10 || admitted+2*2 < limit; i++ { // those that found out count, too
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("%d admitted, %d refused", admitted, refused)
		}
		switch a := r.chat(gates[max(0, i%5-3)], false, nil); {
		case a.status == http.StatusOK:
			admitted++
		case a.status == http.StatusTooManyRequests && strings.Contains(a.body, "30 requests a minute"):
			refused++
		default:
			t.Fatalf("%+v", a)
		}
	}
	if most := limit + int(limit*time.Since(began).Minutes()) + 1; admitted > most {
		t.Errorf("%d admitted by two, %d are allowed", admitted, most)
	}
}

// isLimited asks for a word, and reports whether the answer tells of
// a limit.
func (c *testController) isLimited(g *gate) bool {
	req, _ := http.NewRequest("POST", "http://"+g.public+"/v1/chat/completions", strings.NewReader(`{"model":"qwen","messages":[{"role":"user","content":"hello"}]}`))
	req.Header.Set("Authorization", "Bearer "+c.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.Header.Get("X-Ratelimit-Limit-Requests") != ""
}
