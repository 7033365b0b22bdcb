package activator

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// TestKeyIsCheckedOnce: the head of a request whose body comes late is opened once. A key that is
// deleted while the body comes was right, and is wrong for the connection's next request.
func TestKeyIsCheckedOnce(t *testing.T) {
	keys := newKeyStore(t)
	secret, key, err := keys.Create("default", "", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := keys.Create("default", "", false); err != nil { // so that a key is still needed
		t.Fatal(err)
	}
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	a := New(Options{Waker: &testEnv{}, Keys: keys, Engines: engines, Hold: Hold503})
	a.Publish(testFunction("tiny"))
	asked := make(chan bool)
	ln := httpservertest.Listen()
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: a.Serve, Authorize: func(req *httpserver.Request,
		res *httpserver.Response) (string, bool) {
		account, ok := a.Authorize(req, res)
		asked <- ok
		return account, ok
	}})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	conn, err := ln.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nX-Request-Id: mine\r\n"+
		"Content-Length: %d\r\n\r\n", secret, len(plainRequest))
	go io.WriteString(conn, head)
	if !<-asked {
		t.Fatal("the head was refused")
	}
	if err := keys.Delete(key.ID); err != nil {
		t.Fatal(err)
	}
	go io.WriteString(conn, plainRequest+head+plainRequest)
	answers := bufio.NewReader(conn)
	for i, want := range []int{503, 401} {
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != want || i == 0 && res.Header.Get("thaw-client-request-id") != "mine" {
			t.Errorf("request %d: %d %s %v, %v; want %d", i, res.StatusCode, body, res.Header, err, want)
		}
	}
	conn.Close()
	srv.Shutdown(t.Context())
	<-done
}
