package socket

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/thaw-dev/thaw/activator/snapshot"
)

// TestAffinity: a session has one replica, over HTTP by thaw-session and on a socket by its
// client_id; a replica that is gone is replaced, and both say so.
func TestAffinity(t *testing.T) {
	r := newRig(t, nil)
	at := make(chan string, 100)
	var replicas []snapshot.Replica
	for _, id := range []string{"r1", "r2"} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			at <- id
			r.answer(w, req)
			<-r.bodies
			<-r.heads
		}))
		t.Cleanup(engine.Close)
		replicas = append(replicas, snapshot.Replica{ID: id, Endpoint: engine.URL, Slots: 4})
	}
	overHTTP := func(client, replica, moved string) {
		t.Helper()
		req, err := http.NewRequest("POST", "http://"+r.addr+generatePath, strings.NewReader(`{"model":"auto","messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("thaw-session", client)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got, said := <-at, res.Header.Get("thaw-session"); got != replica || said != moved {
			t.Errorf("%s over HTTP: at %s, %q; want %s, %q", client, got, said, replica, moved)
		}
	}
	onSocket := func(client, replica, moved string) {
		t.Helper()
		c := r.connect("/ws/" + client)
		c.say(`{"type":"submit","text":"hello"}`)
		f, _ := c.until("generation_start")
		c.until("generation_complete")
		if got := <-at; got != replica || f.Moved != moved {
			t.Errorf("%s on a socket: at %s, %q; want %s, %q", client, got, f.Moved, replica, moved)
		}
		c.Close(websocket.StatusNormalClosure, "")
	}
	r.publishAt("tiny", replicas[:1])
	for i := range 6 { // of which some hash to r2
		overHTTP(fmt.Sprint("a", i), "r1", "")
		onSocket(fmt.Sprint("b", i), "r1", "")
	}
	r.publishAt("tiny", replicas)
	for i := range 6 {
		onSocket(fmt.Sprint("a", i), "r1", "")
		overHTTP(fmt.Sprint("b", i), "r1", "")
	}
	r.publishAt("tiny", replicas[1:])
	onSocket("a0", "r2", "gone")
	overHTTP("b0", "r2", "moved; why=gone")
	r.publishAt("tiny", replicas)
	overHTTP("a0", "r2", "")
	onSocket("b0", "r2", "")
	overHTTP("a1", "r1", "")
}
