package remote

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// published keeps the newest snapshots.
type published map[functions.Name]snapshot.Snapshot

func (p published) Publish(fs ...snapshot.Snapshot) {
	for _, f := range fs {
		p[f.Name] = f
	}
}

func (p published) Remove(names ...functions.Name) {
	for _, n := range names {
		delete(p, n)
	}
}

var cloud = functions.Name{Team: "default", Name: "cloud"}

func testRemote(change func(*functions.RemoteSpec)) *functions.Remote {
	r := functions.NewRemote()
	r.Metadata.Name = cloud.Name
	r.Spec.URL = "https://api.example.com/v1"
	if change != nil {
		change(&r.Spec)
	}
	return r
}

// TestMoney: whatever requests of several teams cost, estimate and fail, each is charged
// once, to its Remote and its team, and no budget spends more than its limit, one
// reservation, and what requests cost beyond their reservations.
func TestMoney(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 3))
		now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
		ledger, err := spend.Open("")
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{Ledger: ledger, Now: func() time.Time { return now }})
		const limit = 1.0
		s.Set([]*functions.Remote{testRemote(func(r *functions.RemoteSpec) {
			r.Price = functions.Price{Input: 10, Output: 50}
			r.Limits.SpendPerDay = limit
		})})
		teamLimit := map[string]float64{"a": 0, "b": 0.5}
		cost := map[string]float64{}
		var total, excess, largest float64
		var calls []*Call
		end := func() {
			i := random.IntN(len(calls))
			c := calls[i]
			calls = append(calls[:i], calls[i+1:]...)
			reserved := c.t.cost(c.prompt, c.request.Envelope.MaxTokens)
			if c.request.Envelope.MaxTokens == 0 {
				reserved = c.t.cost(c.prompt, assumedOutput)
			}
			c.sent, c.status = true, []int{200, 200, 200, 0, 400, 500}[random.IntN(6)]
			c.events = random.Int64N(3000)
			var u openai.Usage
			if random.IntN(2) == 0 {
				u = openai.Usage{Known: true, Prompt: random.Int64N(2000), Completion: random.Int64N(8000) - 100}
			}
			charge := c.End(u, 200, now)
			if again := c.End(openai.Usage{Known: true, Prompt: 1e6}, 200, now); again != charge {
				t.Fatalf("charged %v, then %v", charge, again)
			}
			if c.status >= 400 && charge.Cost != 0 || charge.Cost < 0 || c.status == 200 && charge.Estimated == u.Known {
				t.Fatalf("seed %d: status %d, usage %+v: %+v", seed, c.status, u, charge)
			}
			cost[c.request.Team] += charge.Cost
			total += charge.Cost
			excess += max(0, charge.Cost-reserved)
			largest = max(largest, reserved)
		}
		refused := 0
		for range 400 {
			if len(calls) > 0 && random.IntN(2) == 0 {
				end()
				continue
			}
			team := []string{"a", "b"}[random.IntN(2)]
			env := &openai.Envelope{PromptBytes: random.IntN(6000), Messages: 1, N: 1, MaxTokens: int64(random.IntN(3) * 1000)}
			c, e := s.Begin(Request{Name: cloud, Team: team, TeamBudget: teamLimit[team], Generates: true, Envelope: env})
			if e != nil {
				refused++
				if e.Status != 429 || e.Code == openai.InsufficientQuota && !strings.Contains(e.Message, "It renews at 2026-11-30T00:00:00Z") {
					t.Fatalf("%+v", e)
				}
				continue
			}
			calls = append(calls, c)
		}
		for len(calls) > 0 {
			end()
		}
		near := func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }
		if !near(s.SpentToday(cloud), total) || !near(s.TeamSpentToday("b"), cost["b"]) ||
			!near(ledger.Spent("remote default/cloud", now), total) || !near(ledger.Spent("team a", now), cost["a"]) ||
			!near(ledger.Spent("team b", now), cost["b"]) {
			t.Fatalf("seed %d: %v %v %v, want %v %v", seed, ledger.Spent("remote default/cloud", now), ledger.Spent("team a", now),
				ledger.Spent("team b", now), total, cost)
		}
		if total > limit+largest+excess || cost["b"] > teamLimit["b"]+largest+excess || refused == 0 {
			t.Fatalf("seed %d: %v spent, %v by b, %v beyond reservations, %d refused", seed, total, cost["b"], excess, refused)
		}
		now = now.Add(12 * time.Hour)
		if c, e := s.Begin(Request{Name: cloud, Team: "b", TeamBudget: 0.5}); e != nil {
			t.Errorf("the next day: %v", e)
		} else {
			c.End(openai.Usage{}, 499, now)
		}
	}
}

// TestLimits: requests and tokens a minute of all teams together, and the refusal says
// when there is room.
func TestLimits(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := New(Options{Now: func() time.Time { return now }})
	s.Set([]*functions.Remote{testRemote(func(r *functions.RemoteSpec) {
		r.Limits = functions.RemoteLimits{RequestsPerMinute: 2, TokensPerMinute: 1000}
	})})
	send := func(tokens int64) *openai.Error {
		if e := s.Refusal(cloud, "default", 0); e != nil {
			return e
		}
		c, e := s.Begin(Request{Name: cloud, Team: "default"})
		if e == nil {
			c.sent, c.status = true, 200
			c.End(openai.Usage{Known: true, Completion: tokens}, 200, now)
		}
		return e
	}
	for range 2 {
		if e := send(0); e != nil {
			t.Fatal(e)
		}
	}
	if e := send(0); e == nil || e.Code != openai.RateLimitExceeded || !strings.Contains(e.Message, "2 requests a minute") ||
		e.RetrySeconds() != 30 {
		t.Errorf("%+v", e)
	}
	now = now.Add(30 * time.Second)
	if e := send(1500); e != nil {
		t.Fatal(e)
	}
	now = now.Add(15 * time.Second) // a quarter of the limit came back, half of it is owed
	if e := send(0); e == nil || !strings.Contains(e.Message, "minute") {
		t.Errorf("%+v", e)
	}
	now = now.Add(time.Minute)
	if e := send(0); e != nil {
		t.Error(e)
	}
}

// TestKeyFile: a key is read again when its file changes, a new key ends the failure that
// the old one caused, and what is no key fails the Remote with the reason.
func TestKeyFile(t *testing.T) {
	now := time.Unix(1e9, 0)
	path := filepath.Join(t.TempDir(), "key")
	r := testRemote(func(r *functions.RemoteSpec) { r.KeyFrom.File = path })
	p := published{}
	s := New(Options{Now: func() time.Time { return now }})
	s.Set([]*functions.Remote{r})
	s.Attach(p)
	write := func(text string) {
		t.Helper()
		fresh := path + ".new"
		if err := os.WriteFile(fresh, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fresh, path); err != nil {
			t.Fatal(err)
		}
		s.Check()
	}
	state := func(want functions.State, reason string) {
		t.Helper()
		f := p[cloud]
		got := ""
		if f.Failure != nil {
			got = f.Failure.Reason
		}
		if f.State != want || !strings.Contains(got, reason) || (len(f.Replicas) == 1) != (want == functions.Ready) ||
			strings.Contains(got, "sk-") {
			t.Errorf("%s, %q; want %s, %q", f.State, got, want, reason)
		}
	}
	state(functions.Failed, "does not exist")
	write("sk-one\n")
	state(functions.Ready, "")
	c, e := s.Begin(Request{Name: cloud, Team: "default"})
	if e != nil || c.key != "sk-one" {
		t.Fatal(e)
	}
	c.judgeStatus(&upstream.Response{Status: 401}, nil, true)
	old, _ := s.Begin(Request{Name: cloud, Team: "default"})
	old.judgeStatus(&upstream.Response{Status: 401}, nil, true)
	c.End(openai.Usage{}, 503, now)
	state(functions.Failed, "refuses the key of this server (401)")
	write("sk-two\n")
	state(functions.Ready, "")
	old.End(openai.Usage{}, 503, now) // it had the old key
	state(functions.Ready, "")
	if c, e = s.Begin(Request{Name: cloud, Team: "default"}); e != nil || c.key != "sk-two" {
		t.Fatalf("%+v %v", c, e)
	}
	c.End(openai.Usage{}, 499, now)
	for text, reason := range map[string]string{" \n": "is empty", "sk-a sk-b": "characters that no key has", "sk-\x01": "characters that no key has",
		`"sk-a"`: "quotes, a name or JSON", "OPENAI_API_KEY=sk-a": "quotes, a name or JSON", `{"api_key":"sk-a"}`: "quotes, a name or JSON", "Bearer sk-a": "or Bearer",
		strings.Repeat("k", 5000): "more than a key"} {
		write(text)
		state(functions.Failed, reason)
	}
	s.Set(nil)
	if len(p) != 0 {
		t.Errorf("a Remote that was removed is published: %v", p)
	}
}

// TestForbidden: what a 403 proves of a Remote, whose circuit is that of all callers.
func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		body string
		want outcome
	}{
		{`{"error":{"message":"Country not supported","type":"request_forbidden","code":"unsupported_country_region_territory"}}`, misconfigured},
		{`{"error":{"message":"The account is suspended","type":"account_suspended"}}`, misconfigured},
		{`{"error":{"message":"no such key","code":"INVALID_API_KEY"}}`, misconfigured},
		{`{"error":{"message":"violates the policy","type":"invalid_request_error","code":"content_policy_violation"}}`, good},
		{`{"error":{"message":"the project has no access to this model","type":"invalid_request_error","code":"model_not_found"}}`, good},
		{`{"error":{"message":"the data is internal","type":"invalid_request_error","code":"data_class_refused"}}`, good},
		{`{"type":"error","error":{"type":"permission_error","message":"no"}}`, failed},
		{`{"error":{"code":403,"message":"denied","status":"PERMISSION_DENIED"}}`, failed},
		{`<html>Forbidden</html>`, failed},
		{``, failed},
	} {
		if got := judgeForbidden([]byte(c.body)); got != c.want {
			t.Errorf("%s: %d, want %d", c.body, got, c.want)
		}
	}
}

// TestAddresses: which URLs a Remote may have, before anything is dialled.
func TestAddresses(t *testing.T) {
	for _, c := range []struct{ url, hosts, bad, path string }{
		{"https://api.example.com/v1", "", "", "/v1/chat/completions"},
		{"https://api.example.com/openai/v1/", "", "", "/openai/v1/chat/completions"},
		{"https://api.example.com", "", "", "/chat/completions"},
		{"http://api.example.com/v1", "", "use https", ""},
		{"http://127.0.0.1:8080/v1", "", "", "/v1/chat/completions"},
		{"http://[::1]:8080/v1", "", "", "/v1/chat/completions"},
		{"http://localhost:8080/v1", "", "", "/v1/chat/completions"},
		{"https://10.0.0.1/v1", "", "not public", ""},
		{"https://169.254.169.254/v1", "", "not public", ""},
		{"https://[fd00::1]/v1", "", "not public", ""},
		{"https://[::ffff:10.0.0.1]/v1", "", "not public", ""},
		{"https://2130706433/v1", "", "not public", ""},
		{"https://models.svc/v1", "", "not public", ""},
		{"http://models.svc/v1", "models.svc", "", "/v1/chat/completions"},
		{"http://10.0.0.1:8000/v1", "10.0.0.0/8", "", "/v1/chat/completions"},
		{"ftp://api.example.com", "", "no address", ""},
	} {
		s := New(Options{Getenv: func(string) string { return c.hosts }})
		r := testRemote(func(r *functions.RemoteSpec) { r.URL = c.url })
		s.Set([]*functions.Remote{r})
		state, reason, _ := s.State(cloud)
		if (state == functions.Failed) != (c.bad != "") || !strings.Contains(reason, c.bad) {
			t.Errorf("%s: %s %s", c.url, state, reason)
		}
		if prefix, path := s.find(cloud).path("/v1/chat/completions"); c.path != "" && prefix+path != c.path {
			t.Errorf("%s: %s%s", c.url, prefix, path)
		}
	}
	s := New(Options{})
	s.Set([]*functions.Remote{testRemote(nil)})
	if prefix, path := s.find(cloud).path("/tokenize"); prefix+path != "/tokenize" {
		t.Errorf("%s%s", prefix, path)
	}
	// A name that leads to a private address is refused when it is dialled.
	target := s.find(cloud)
	c := &Call{t: target}
	_, err := s.trust.DialPublic(t.Context(), net.Dialer{}, "tcp", "10.255.255.1:443")
	if got := c.describeDial(err); !strings.Contains(got, "10.255.255.1 is not public") {
		t.Error(got)
	}
}

// TestClaims: an answer that claims more tokens than its request can have is charged by an
// estimate, and the log says so.
func TestClaims(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, x := range []struct {
		name      string
		env       *openai.Envelope
		claim     openai.Usage
		estimated bool
	}{
		{"true", &openai.Envelope{PromptBytes: 3000, Messages: 1, N: 1, MaxTokens: 100}, openai.Usage{Prompt: 1000, Completion: 100}, false},
		{"of a long context", &openai.Envelope{PromptBytes: 4 << 20, Messages: 1, N: 1}, openai.Usage{Prompt: 1 << 20, Completion: 1 << 17}, false},
		{"of several answers", &openai.Envelope{PromptBytes: 30, Messages: 1, N: 4, MaxTokens: 1 << 16}, openai.Usage{Prompt: 10, Completion: 4 << 16}, false},
		{"of an image", &openai.Envelope{PromptBytes: 300, Messages: 1, N: 1}, openai.Usage{Prompt: 2000, Completion: 10}, false},
		{"of no request", nil, openai.Usage{Prompt: 1 << 20}, false},
		{"an answer without an end", &openai.Envelope{PromptBytes: 30, Messages: 1, N: 1}, openai.Usage{Prompt: 10, Completion: 9e18}, true},
		{"a prompt without an end", &openai.Envelope{PromptBytes: 30, Messages: 1, N: 1}, openai.Usage{Prompt: 9e18, Completion: 10}, true},
		{"beyond max_tokens", &openai.Envelope{PromptBytes: 30, Messages: 1, N: 1, MaxTokens: 100}, openai.Usage{Prompt: 10, Completion: 1 << 20}, true},
		{"beyond its text", &openai.Envelope{PromptBytes: 30, Messages: 1, N: 1}, openai.Usage{Prompt: 1 << 20, Completion: 10}, true},
		{"of no request, without an end", nil, openai.Usage{Prompt: 9e18, Completion: 9e18}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			ledger, err := spend.Open("")
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			s := New(Options{Ledger: ledger, Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil))})
			s.Set([]*functions.Remote{testRemote(func(r *functions.RemoteSpec) {
				r.Price = functions.Price{Input: 10, Output: 50}
				r.Limits.SpendPerDay, r.Limits.TokensPerMinute = 1e6, 1e9
			})})
			c, e := s.Begin(Request{Name: cloud, Team: "a", Generates: true, Envelope: x.env})
			if e != nil {
				t.Fatal(e)
			}
			c.sent, c.status, c.bytes = true, 200, 400
			x.claim.Known = true
			charge := c.End(x.claim, 200, now)
			if charge.Estimated != x.estimated || !x.estimated && charge.Usage != x.claim ||
				x.estimated && (charge.Usage.Completion != 100 || charge.Cost > 0.01) {
				t.Errorf("charged %+v", charge)
			}
			if strings.Contains(log.String(), "claims more tokens") != x.estimated {
				t.Errorf("the log has %q", log.String())
			}
			if e := s.Refusal(cloud, "a", 0); e != nil {
				t.Errorf("the next request: %v", e)
			}
		})
	}
}
