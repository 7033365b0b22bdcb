package controlstream

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// TestLargeModels: whatever models and keys a team has, an activator gets those of all other
// teams, and of the team what is within the bounds.
func TestLargeModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		h := NewHub(HubOptions{Tokens: tokens(secret), Log: w.logger()})
		publish := func(team, model string, edit func(*functions.Model)) functions.Name {
			f := ready(functions.Name{Team: team, Name: model})
			f.Model = functions.NewModel()
			f.Model.Metadata.Namespace, f.Model.Metadata.Name = team, model
			f.Model.Spec.Source = "hf://a/b"
			edit(f.Model)
			h.Publish(f)
			return f.Name
		}
		var all []functions.Name
		for i := range 600 { // more than one part
			all = append(all, publish("greedy", fmt.Sprint("env", i), func(m *functions.Model) {
				m.Spec.Env = map[string]string{"A": strings.Repeat("a", 256<<10)}
				m.Spec.Args = []string{strings.Repeat("b", 256<<10)}
			}))
		}
		for i := range 400 { // 24 MB of their own, of which maxTeamModels are sent
			all = append(all, publish("greedy", fmt.Sprint("source", i), func(m *functions.Model) { m.Spec.Source = strings.Repeat("s", 60<<10) }))
		}
		all = append(all, publish("greedy", "single", func(m *functions.Model) { m.Spec.Source = strings.Repeat("s", maxModel) }))
		modest := publish("modest", "m", func(*functions.Model) {})
		var keys []auth.StoredKey
		for i := range 3 * maxTeamKeys {
			keys = append(keys, auth.StoredKey{Key: auth.Key{ID: fmt.Sprint(i), Team: "greedy"}})
		}
		keys = append(keys, auth.StoredKey{Key: auth.Key{ID: "long", Team: "other", Name: strings.Repeat("n", maxKey)}},
			auth.StoredKey{Key: auth.Key{ID: "k", Team: "modest"}})
		h.SetKeys(Keys{Keys: keys, Teams: []functions.Team{{}}})
		s := w.serve(at(1)+":8090", h)
		f := newFeed()
		var got Keys
		a := NewActivator(ActivatorOptions{ClientOptions: ClientOptions{Addr: "control:8090", Token: secret, Hello: Hello{ID: "a"}, Dial: w.dial,
			Lookup: w.lookup, Log: w.logger()}, Keys: func(k Keys) { got = k }})
		attach(a, f)
		stop := w.run(a.Run)
		<-a.Synced()
		synctest.Wait()
		bytes := 0
		for i, n := range all {
			p, ok := f.has(n)
			if !ok {
				t.Fatalf("%s has not come", n)
			}
			if p.Model != nil {
				bytes += len(p.Model.Spec.Source)
				if p.Model.Spec.Env != nil || p.Model.Spec.Args != nil || len(p.Model.Spec.Source) > maxModel {
					t.Errorf("%s: %d bytes of a source, env %t", n, len(p.Model.Spec.Source), p.Model.Spec.Env != nil)
				}
			} else if i < 600 {
				t.Errorf("%s is without a model", n)
			}
		}
		if bytes > maxTeamModels || bytes < maxTeamModels/2 {
			t.Errorf("%d bytes of one team's models", bytes)
		}
		if p, ok := f.has(modest); !ok || p.Model == nil || p.Model.Spec.Source != "hf://a/b" {
			t.Errorf("the other team's model is %+v, %t", p.Model, ok)
		}
		if len(got.Keys) != maxTeamKeys+1 || got.Keys[maxTeamKeys].ID != "k" || len(got.Teams) != 1 {
			t.Errorf("%d keys, %d teams", len(got.Keys), len(got.Teams))
		}
		// A model within the bounds again is sent, and one that has not changed is not.
		single := publish("greedy", "single", func(m *functions.Model) {})
		h.Remove(all[:1000]...)
		synctest.Wait()
		if p, _ := f.has(single); p.Model == nil {
			t.Error("it is still without its model")
		}
		if len(h.models) != 2 || h.modelBytes["greedy"] != h.models[single].bytes {
			t.Errorf("%d models are known, of %v bytes", len(h.models), h.modelBytes)
		}
		stop()
		s.end()
		h.Close()
	})
}

// TestTooLong: a message that the other end would refuse is not written.
func TestTooLong(t *testing.T) {
	sent := 0
	s := newStream(nil, 0, func(b []byte) error { sent += len(b); return nil }, 1000, func() {})
	if err := s.write(&updateFrame{Update: Update{AbortAgent: []string{strings.Repeat("a", 2000)}}}); err == nil || sent > 0 {
		t.Errorf("%d bytes are sent, %v", sent, err)
	}
}

// TestUpdateParts: an update that is sent in parts is applied as one.
func TestUpdateParts(t *testing.T) {
	d := Update{FullSync: true, Table: &Table{Version: 3}, Keys: &Keys{Teams: make([]functions.Team, 2)}}
	for i := range 3*partFunctions + 1 {
		d.Functions = append(d.Functions, ready(name(fmt.Sprint(i))))
	}
	d.Keys.Keys = make([]auth.StoredKey, 2*partKeys+1)
	parts := d.split()
	if len(parts) != 7 {
		t.Fatalf("%d parts", len(parts))
	}
	if last := parts[6]; last.Table == nil || len(last.Functions) > 0 {
		t.Errorf("the table, which may be large, has %d functions beside it", len(last.Functions))
	}
	var got Update
	sent, known := models{}, models{}
	for i, part := range parts {
		got.join(part.pack(uint64(i), sent, moment).unpack(known, moment))
	}
	if !got.FullSync || len(got.Functions) != len(d.Functions) || len(got.Keys.Keys) != len(d.Keys.Keys) || len(got.Keys.Teams) != 2 ||
		got.Table.Version != 3 || len(known) != len(d.Functions) {
		t.Errorf("%v, %d functions, %d keys, %d models known", got.FullSync, len(got.Functions), len(got.Keys.Keys), len(known))
	}
}

// TestOtherProtocol: a peer of another protocol gets an error that names ours.
func TestOtherProtocol(t *testing.T) {
	addr := listen(t, NewHub(HubOptions{Tokens: tokens(secret)}))
	for what, c := range map[string]struct {
		method, content string
		plain           bool // HTTP/2
	}{
		"an upgrade":   {http.MethodGet, "", false},
		"HTTP/1":       {http.MethodPost, protocol, false},
		"a former one": {http.MethodPost, "thaw-control/2", true},
	} {
		transport := &http.Transport{Protocols: protocols(!c.plain, c.plain), DisableKeepAlives: true}
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+addr+Endpoint, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", c.content)
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		b := make([]byte, 100)
		n, _ := res.Body.Read(b)
		res.Body.Close()
		transport.CloseIdleConnections()
		if res.StatusCode != http.StatusUpgradeRequired || !strings.Contains(string(b[:n]), protocol) {
			t.Errorf("%s: %d %s", what, res.StatusCode, b[:n])
		}
	}
}

// TestPeerThatDoesNotRead: a peer that sends and no longer reads is gone after deadAfter.
func TestPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		h := NewHub(HubOptions{Tokens: tokens(secret), Log: w.logger()})
		s := w.serve(at(1)+":8090", h)
		a, stop := w.activator("good", newFeed())
		<-a.Synced()
		p, err := NewClient(ClientOptions{Token: secret, Dial: w.dial}).openStream(t.Context(), at(1)+":8090")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range 60 {
			if err := p.write((Report{Hello: &Hello{Kind: KindActivator, ID: "deaf"}}).pack(true, 0, time.Now())); err != nil {
				break
			}
			var long []snapshot.Snapshot
			for i := range 1000 {
				long = append(long, ready(name(fmt.Sprint(i)), strings.Repeat("r", 1000)))
			}
			h.Publish(long...)
			time.Sleep(pingEvery / 2)
		}
		synctest.Wait() // until the end is logged
		if took := time.Since(began); took > deadAfter+pingEvery || took < deadAfter || !strings.Contains(w.logged(), "read nothing for 5s") {
			t.Errorf("it was let in for %v\n%s", took, w.logged())
		}
		if !a.Connected() {
			t.Error("the other one has gone, too")
		}
		stop()
		s.end()
		h.Close()
	})
}
