package answer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/testkit/rude"
)

const events = "data: {\"choices\":[]}\n\n"

// hanging is a response whose chunks have come and whose end does not come.
func hanging(contentType string, chunks ...string) rude.Answer {
	a := rude.Chunked(200, contentType, false, chunks...)
	a[len(a)-1] = rude.Step{Then: rude.Hang}
	return a
}

// TestAsk: what an answer is, told by its status, its type, its encoding and its first bytes.
func TestAsk(t *testing.T) {
	for _, x := range []struct {
		name   string
		answer rude.Answer
		stream bool
		events bool
		end    bool
		begin  string
	}{
		{"a stream", hanging("text/event-stream", events), true, true, false, events},
		{"a stream in another case", hanging("TEXT/Event-Stream; charset=x", events), true, true, false, events},
		{"a stream without a type", hanging("", "\n", ": hi\n", events), true, true, false, "\n: hi\n" + events},
		{"a stream, byte by byte", hanging("", strings.Split(events, "")...), true, true, false, events},
		{"a stream that the request did not ask for", hanging("text/event-stream", events), false, false, false, events},
		{"JSON", rude.Plain(200, "application/json", `{"a":1}`), true, false, true, `{"a":1}`},
		{"JSON without a type", rude.Chunked(200, "", true, `{"a"`, `:1}`), true, false, true, `{"a":1}`},
		{"audio", hanging("audio/mpeg", "ID3...."), false, false, false, "ID3...."},
		{"nothing", rude.Plain(204, "", ""), true, false, true, ""},
		{"an error in chunks", rude.Chunked(400, "text/plain", true, "too ", "long"), true, false, true, "too long"},
		{"an error that breaks", rude.Chunked(400, "text/plain", false, "too ", "long"), false, false, true, "too long"},
		{"an error that is a stream", rude.Chunked(500, "text/event-stream", true, events), true, false, true, events},
	} {
		t.Run(x.name, func(t *testing.T) {
			e := rude.Start(t, x.answer)
			c := upstream.New(upstream.Options{})
			defer c.Close()
			a := Ask(context.Background(), c, &upstream.Request{Addr: e.Addr, Method: "POST", Path: "/"}, Want{Stream: x.stream}, &Buffers{})
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			defer a.Response.Close()
			// How much of what has come one read returns is up to the network.
			begin := string(a.Begin)
			if a.Events != x.events || a.End != x.end || x.end && begin != x.begin || begin == "" && x.begin != "" ||
				!strings.HasPrefix(x.begin, begin) || x.events && !strings.Contains(begin, "data: {") {
				t.Errorf("events %v, end %v, %q", a.Events, a.End, begin)
			}
		})
	}
}

// TestNotHTTP: an answer that is not HTTP is named with what is wrong with it.
func TestNotHTTP(t *testing.T) {
	why := fmt.Errorf("%w: its content-length is %q", upstream.ErrProtocol, "5x")
	if _, kind, e := DescribeFailure(io.ErrUnexpectedEOF, false); kind != "cut" || !strings.Contains(e.Message, "before it wrote anything") {
		t.Errorf("a stream without an event: %s, %v", kind, e)
	}
	for _, x := range []struct {
		cause error
		words string
	}{
		{why, `The engine's answer is not HTTP: its content-length is "5x".`},
		{errors.New("unsolicited bytes"), "The engine's answer is not HTTP: it came without a request."},
	} {
		if _, kind, e := DescribeFailure(&upstream.Error{Addr: "10.0.0.1:1", Kind: upstream.ErrProtocol, Err: x.cause},
			false); kind != "protocol" || e.Message != x.words {
			t.Errorf("%s: %v", kind, e)
		}
	}
}

// TestError: the status stays, and a path that an engine does not have is named.
func TestError(t *testing.T) {
	now := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for _, x := range []struct {
		status        int
		body          string
		code, message string
	}{
		{404, `{"detail":"Not Found"}`, "unknown_endpoint", "The engine of this model does not serve /v1/score: Not Found"},
		{404, "404 page not found\n", "unknown_endpoint", "The engine of this model does not serve /v1/score: 404 page not found"},
		{405, `{"detail":"Method Not Allowed"}`, "unknown_endpoint", "The engine of this model does not serve /v1/score: Method Not Allowed"},
		{404, `{"detail":"The model x does not exist"}`, "not_found", "The model x does not exist"},
		{404, `{"error":{"message":"Not Found"}}`, "not_found", "Not Found"},
		{404, `{"error":{"code":404,"message":"File Not Found"}}`, "unknown_endpoint", "The engine of this model does not serve /v1/score: File Not Found"},
		{404, `{"error":{"message":"Not Found: /v1/score","code":"unknown_endpoint"}}`, "unknown_endpoint", "The engine of this model does not serve /v1/score: Not Found"},
		{404, `{"error":{"message":"Not Found: /data/score"}}`, "not_found", "Not Found: /data/score"},
		{418, "teapot", "invalid_request", "teapot"},
	} {
		a := Answer{Response: &upstream.Response{Status: x.status}, Begin: []byte(x.body), End: true}
		for _, e := range []error{a.Error("/v1/score", now), a.StreamError("/v1/score", now)} {
			if e.Error() != x.code+": "+x.message {
				t.Errorf("%d %s: %v", x.status, x.body, e)
			}
		}
	}
	for _, a := range []Answer{
		{Response: &upstream.Response{Status: 200}, Begin: []byte("hello"), End: true},
		{Response: &upstream.Response{Status: 307}, End: true},
		{Response: &upstream.Response{Status: 200}, Encoding: "br", Begin: []byte("\x00")},
	} {
		if e := a.StreamError("/v1/score", now); e.Status != 502 || e.Code == "engine_crashed" ||
			!strings.Contains(e.Message, "The engine answered a stream with status ") || strings.Contains(e.Message, "\x00") {
			t.Errorf("%+v", e)
		}
	}
}
