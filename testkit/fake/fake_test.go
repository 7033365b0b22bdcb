package fake

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseAsk(t *testing.T) {
	for _, c := range []struct {
		body string
		want Script
	}{
		{`{}`, Script{Tokens: 64}},
		{`{"stream":true}`, Script{Stream: true, Tokens: 64}},
		{`{"stream" : true,"stream_options":{"include_usage": true}}`, Script{Stream: true, Usage: true, Tokens: 64}},
		{`{"stream":false,"tools":[{}]}`, Script{Tools: true, Tokens: 64}},
		{`{"content":"\"stream\" is true"}`, Script{Tokens: 64}},
		{`{"content":"@fake tokens=3 delay=10ms die=2 stall=1"}`, Script{Tokens: 3, Delay: 10 * time.Millisecond, Die: 2, Stall: 1}},
		{`{"content":"@fake tokens=-3 delay=9h die=x what=1 =\n"}`, Script{Tokens: 64}},
		{`{"content":"@fake tokens=3`, Script{Tokens: 3}},
	} {
		if got := ParseScript([]byte(c.body)); got != c.want {
			t.Errorf("ParseAsk(%s) = %+v, want %+v", c.body, got, c.want)
		}
	}
}

func FuzzParseAsk(f *testing.F) {
	f.Add([]byte(`{"stream":true,"content":"@fake tokens=3 delay=1s"}`))
	f.Add([]byte(`@fake =`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a := ParseScript(b); a.Tokens < 0 || a.Tokens > maxTokens || a.Delay < 0 || a.Delay > maxDelay {
			t.Fatalf("out of bounds: %+v", a)
		}
	})
}

// start serves an engine until the test ends.
func start(t *testing.T, o Options) (*Engine, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := New(o)
	ended := make(chan error, 1)
	go func() { ended <- e.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return e, "http://" + ln.Addr().String()
}

func postBody(t *testing.T, url, body string) string {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAnswers(t *testing.T) {
	_, url := start(t, Options{})
	chat := url + "/v1/chat/completions"
	if got := postBody(t, chat, `{"messages":[]}`); got != string(PlainBody()) {
		t.Errorf("plain: %s", got)
	}
	if got := postBody(t, chat, `{"stream":true}`); got != string(StreamBody(64)) {
		t.Errorf("stream: %s", got)
	}
	got := postBody(t, chat, `{"stream":true,"stream_options":{"include_usage":true},"content":"@fake tokens=2 delay=1ms"}`)
	if n := strings.Count(got, "data: "); n != 4 || !strings.Contains(got, `"completion_tokens":2`) || !strings.HasSuffix(got, done) {
		t.Errorf("usage: %s", got)
	}
	for _, body := range []string{`{"tools":[],"stream":true}`, `{"tools":[]}`} {
		if got := postBody(t, chat, body); !strings.Contains(got, `"name":"weather"`) {
			t.Errorf("%s: %s", body, got)
		}
	}
	if got := postBody(t, url+"/v1/completions", `{"max_tokens":1}`); !strings.Contains(got, `"text":" lorem"`) {
		t.Errorf("completion: %s", got)
	}
	if !json.Valid(plainResponse) || !json.Valid(plainText) || !json.Valid(plainTool) {
		t.Error("an answer is no JSON")
	}
}

func TestStatsAndLast(t *testing.T) {
	e, url := start(t, Options{})
	postBody(t, url+"/v1/chat/completions", `{"warm":"up"}`)
	postBody(t, url+"/v1/chat/completions", `{"second":1}`)
	s := e.Stats()
	if s.Posts != 2 || s.WarmedAt == 0 || s.FirstArrival < s.WarmedAt || s.LastArrival != s.FirstArrival {
		t.Errorf("stats: %+v", s)
	}
	res, err := http.Get(url + "/last")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); string(b) != `{"second":1}` {
		t.Errorf("last: %s", b)
	}
}

func TestHealthWaitsForFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	_, url := start(t, Options{ReadyFile: file})
	status := func() int {
		res, err := http.Get(url + "/health")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := status(); got != 503 {
		t.Errorf("before: %d", got)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := status(); got != 200 {
		t.Errorf("after: %d", got)
	}
}

// sendRaw sends one streamed request and returns its connection and reader, after the first
// event.
func sendRaw(t *testing.T, url, script string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	body := `{"stream":true,"content":"@fake ` + script + `"}`
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	br := bufio.NewReader(c)
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "data: ") {
			return c, br
		}
	}
}

func TestClientDisconnects(t *testing.T) {
	for _, script := range []string{"tokens=1000 delay=10ms", "stall=1"} {
		e, url := start(t, Options{})
		c, _ := sendRaw(t, url, script)
		c.Close()
		testkit.Eventually(t, script+": the client has left", func() (bool, string) {
			s := e.Stats()
			return s.Left == 1 && s.Running == 0, fmt.Sprintf("%+v", s)
		})
	}
}

func TestEngineDies(t *testing.T) {
	died := make(chan struct{})
	_, url := start(t, Options{Kill: func() { close(died) }})
	_, br := sendRaw(t, url, "die=3")
	rest, err := io.ReadAll(br)
	if err != nil {
		t.Fatal(err)
	}
	<-died
	if n := strings.Count(string(rest), "data: "); n != 2 {
		t.Errorf("%d more events, want 2", n)
	}
}

func TestBadHeads(t *testing.T) {
	_, url := start(t, Options{})
	for _, head := range []string{
		"nonsense\r\n\r\n",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, head)
		c.SetReadDeadline(time.Now().Add(testkit.Timeout))
		if b, err := io.ReadAll(c); err != nil || strings.Contains(string(b), "200 OK") {
			t.Errorf("%q: %q %v", head, b, err)
		}
		c.Close()
	}
}
