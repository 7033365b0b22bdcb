package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// tokenProbe is one request by which an engine shows that it generates.
type tokenProbe struct {
	endpoint functions.Endpoint
	path     string
	request  func(name string) (contentType string, body []byte)
	whole    func(contentType string, body []byte) bool // reports a well-formed answer
	// event reports an event of a stream that ends the probe, or that is part of an
	// answer: then the stream's end ends it. nil: this endpoint does not stream.
	event func(data []byte) (done, part bool)
}

const maxProbeAnswer = 4 << 20

// busyWait is how long an engine may be busy at one endpoint before others are asked: it
// may answer there without serving it.
const busyWait = 10 * time.Second

func jsonRequest(fields func(name string) map[string]any) func(string) (string, []byte) {
	return func(name string) (string, []byte) {
		b, err := json.Marshal(fields(name))
		if err != nil {
			panic(err) // only maps, strings and numbers are in it
		}
		return "application/json", b
	}
}

var tokenProbes = []tokenProbe{
	{functions.ServesChat, "/v1/chat/completions", jsonRequest(func(n string) map[string]any {
		return map[string]any{"model": n, "messages": []any{map[string]string{"role": "user", "content": "Hello"}}, "max_tokens": 1, "temperature": 0}
	}), hasChoice, choiceEvent},
	{functions.ServesCompletions, "/v1/completions", jsonRequest(func(n string) map[string]any {
		return map[string]any{"model": n, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
	}), hasChoice, choiceEvent},
	{functions.ServesEmbeddings, "/v1/embeddings", jsonRequest(func(n string) map[string]any {
		return map[string]any{"model": n, "input": "Hello"}
	}), hasEmbedding, nil},
	{functions.ServesRerank, "/v1/rerank", rerankRequest, hasScore, nil},
	{functions.ServesRerank, "/v2/rerank", rerankRequest, hasScore, nil},
	{functions.ServesRerank, "/rerank", rerankRequest, hasScore, nil},
	{functions.ServesScore, "/v1/score", jsonRequest(func(n string) map[string]any {
		return map[string]any{"model": n, "text_1": "Hello", "text_2": "Hello"}
	}), hasScore, nil},
	{functions.ServesTranscriptions, "/v1/audio/transcriptions", audioRequest, hasText, nil},
	{functions.ServesSpeech, "/v1/audio/speech", jsonRequest(func(n string) map[string]any {
		return map[string]any{"model": n, "input": "Hello", "voice": "alloy"}
	}), isAudio, nil},
	{functions.ServesResponses, "/v1/responses", jsonRequest(func(n string) map[string]any {
		return map[string]any{"model": n, "input": "Hello", "max_output_tokens": 16}
	}), hasOutput, outputEvent},
}

var rerankRequest = jsonRequest(func(n string) map[string]any {
	return map[string]any{"model": n, "query": "Hello", "documents": []string{"Hello"}}
})

// probesOf lists the probes of an engine in their order.
func probesOf(c Command) (probes []tokenProbe) {
	switch {
	case c.Probe.None:
		return nil
	case c.Probe.Path != "":
		return []tokenProbe{{"", c.Probe.Path, jsonRequest(func(string) map[string]any { return c.Probe.Body }), isAnswer, nil}}
	case len(c.Serves) == 0:
		return tokenProbes
	}
	for _, endpoint := range c.Serves {
		probes = append(probes, functions.Filter(tokenProbes, func(q tokenProbe) bool { return q.endpoint == endpoint })...)
	}
	return probes
}

// Token requests one token, or what else the engine generates, and returns nil when it
// was answered well. The first call finds out which endpoint answers. The error is that
// of the endpoint which is likeliest to be served. ctx bounds it. An engine that is not to
// be probed is asked for its health.
func (c *Client) Token(ctx context.Context) error {
	if len(c.probes) == 0 {
		return c.Health(ctx)
	}
	if q := c.probe.Load(); q != nil {
		return c.requestToken(ctx, *q)
	}
	var worst error
	last, weight := "", -1
	for _, q := range c.probes {
		err := c.requestToken(ctx, q)
		if err == nil {
			c.probe.Store(&q)
			return nil
		}
		if ctx.Err() != nil || ConnectionRefused(err) {
			return err
		}
		if w := c.weighError(err); w > weight {
			worst, last, weight = err, c.LastAnswer(), w
		}
		if c.busy(err) {
			break
		}
	}
	if last != "" {
		c.lastAnswer.Store(&last)
	}
	return worst
}

// busy reports whether the engine is busy where it was asked, for a bounded time.
func (c *Client) busy(err error) bool {
	var se *StatusError
	if !errors.As(err, &se) || !se.Busy() {
		return false
	}
	now := time.Now().UnixNano()
	c.busyAt.CompareAndSwap(0, now)
	return time.Duration(now-c.busyAt.Load()) < busyWait
}

// probeHint is what a model file says about a probe that is answered so.
func (c *Client) probeHint(se *StatusError) string {
	switch {
	case c.engine != functions.EngineCommand || se.Status >= 500 || se.Busy():
		return ""
	case se.Denied():
		return c.keyHint()
	case c.lacksName(se):
		return " (the engine knows no model of the name `" + c.name + "`, which requests have: give it that name by a flag of its own in args, " +
			"such as --served-model-name {name} or --alias {name}, or name this model as the engine does)"
	}
	return " (an engine answers at the paths below /v1 that clients ask for, by a flag such as --url-prefix /v1 where it has others; " +
		"in the model file serves names its endpoints, probe: {path, body} a request that it answers, and probe: none asks for nothing)"
}

// unknownWords are an engine's words for a model that it does not have.
var unknownWords = regexp.MustCompile(`(?i)not found|not exist|no such model|unknown model|not loaded|not available|invalid model`)

// lacksName reports whether the engine answers that it has no model of the name that requests have.
func (c *Client) lacksName(se *StatusError) bool {
	if se.Status >= 500 || !unknownWords.MatchString(se.Body) {
		return false
	}
	for word := range strings.FieldsFuncSeq(se.Body, func(r rune) bool { return strings.ContainsRune(" /:,;\"'`()[]", r) }) {
		if strings.TrimRight(word, ".!?") == c.name {
			return true
		}
	}
	return false
}

// weighError orders the errors of endpoints: from the answers of one that the engine does
// not have to those of one that does not work yet.
func (c *Client) weighError(err error) int {
	var se *StatusError
	switch {
	case !errors.As(err, &se):
		return 3
	case c.lacksName(se):
		return 2
	case se.Status == http.StatusNotFound || se.Status == http.StatusMethodNotAllowed || se.Status == http.StatusNotImplemented:
		return 0
	case se.Denied():
		return 1
	case se.Status < 500:
		return 2
	}
	return 3
}

func (c *Client) requestToken(ctx context.Context, q tokenProbe) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a stream goes on for as long as it is read
	contentType, body := q.request(c.name)
	res, err := c.send(ctx, http.MethodPost, q.path, contentType, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if res.StatusCode/100 == 2 && q.event != nil && got == "text/event-stream" {
		if err = readEvents(io.LimitReader(res.Body, maxProbeAnswer), q.event); err != nil {
			c.answered(q.path, "without a token: "+err.Error())
			err = fmt.Errorf("%s: %w", q.path, err)
		}
		return err
	}
	answer, err := readAnswer(res, q.path, maxProbeAnswer)
	if se, ok := errors.AsType[*StatusError](err); ok {
		c.answered(q.path, se.Error()+c.probeHint(se))
	}
	if err != nil {
		return err
	}
	if q.event != nil && readEvents(bytes.NewReader(answer), q.event) == nil {
		return nil // a stream by another name
	}
	if answersError(answer) || !q.whole(got, answer) {
		c.answered(q.path, "without a token: "+errorMessage(answer))
		return fmt.Errorf("%s: no token in the answer: %s", q.path, errorMessage(answer))
	}
	return nil
}

// readEvents reads a stream until it shows that the engine generates.
func readEvents(stream io.Reader, event func([]byte) (done, part bool)) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	any := false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); answersError(data) {
			return errors.New("an error in the stream: " + errorMessage(data))
		}
		done, part := event(data)
		if any = any || part; done || any && string(data) == "[DONE]" {
			return nil
		}
	}
	switch {
	case lines.Err() != nil:
		return lines.Err()
	case !any:
		return errors.New("no token in the stream")
	}
	return nil
}

// answersError reports whether an answer is an error, whatever its status.
func answersError(b []byte) bool {
	var a struct {
		Error  json.RawMessage `json:"error"`
		Object string          `json:"object"`
		Type   string          `json:"type"`
	}
	return json.Unmarshal(b, &a) == nil && (len(a.Error) > 0 && string(a.Error) != "null" || a.Object == "error" || a.Type == "error")
}

// choices of a chat or a completion, whole or of a stream.
type choices []struct {
	Text    *string `json:"text"`
	Message *struct {
		Role string `json:"role"`
	} `json:"message"`
	Delta *struct {
		Content          string `json:"content"`
		Reasoning        string `json:"reasoning"`
		ReasoningContent string `json:"reasoning_content"`
	} `json:"delta"`
	Finish *string `json:"finish_reason"`
}

func choicesOf(b []byte) choices {
	var a struct {
		Choices choices `json:"choices"`
	}
	if json.Unmarshal(b, &a) != nil {
		return nil
	}
	return a.Choices
}

// hasChoice reports whether an answer has a text or a message; the first token may be
// empty.
func hasChoice(_ string, b []byte) bool {
	c := choicesOf(b)
	return len(c) > 0 && (c[0].Text != nil || c[0].Message != nil)
}

func choiceEvent(data []byte) (done, part bool) {
	c := choicesOf(data)
	if len(c) == 0 {
		return false, false
	}
	d := c[0].Delta
	return c[0].Finish != nil || c[0].Text != nil && *c[0].Text != "" || d != nil && d.Content+d.Reasoning+d.ReasoningContent != "",
		c[0].Text != nil || d != nil || c[0].Message != nil
}

func hasEmbedding(_ string, b []byte) bool {
	var a struct {
		Data []struct {
			Embedding json.RawMessage `json:"embedding"` // numbers, or base64
		} `json:"data"`
	}
	return json.Unmarshal(b, &a) == nil && len(a.Data) > 0 && len(a.Data[0].Embedding) > 2
}

// hasScore reports whether an answer has a score of a document: in results, in data, or in
// a bare list.
func hasScore(_ string, b []byte) bool {
	type scores []struct {
		Score     *float64 `json:"score"`
		Relevance *float64 `json:"relevance_score"`
	}
	var a struct{ Results, Data, Scores json.RawMessage }
	var list scores
	if json.Unmarshal(b, &list) != nil {
		if json.Unmarshal(b, &a) != nil {
			return false
		}
		var numbers []float64
		if json.Unmarshal(a.Scores, &numbers) == nil && len(numbers) > 0 {
			return true
		}
		for _, raw := range []json.RawMessage{a.Results, a.Data} {
			if len(list) == 0 && len(raw) > 0 && json.Unmarshal(raw, &list) != nil {
				return false
			}
		}
	}
	return len(list) > 0 && (list[0].Score != nil || list[0].Relevance != nil)
}

func hasText(_ string, b []byte) bool {
	var a struct {
		Text *string `json:"text"` // silence has none
	}
	return json.Unmarshal(b, &a) == nil && a.Text != nil
}

func isAudio(contentType string, b []byte) bool {
	return len(b) > 0 && (strings.HasPrefix(contentType, "audio/") || contentType == "application/octet-stream" ||
		contentType == "" && b[0] != '<' && b[0] != '{')
}

func hasOutput(_ string, b []byte) bool {
	var a struct {
		Output *[]json.RawMessage `json:"output"`
		Status string             `json:"status"`
	}
	return json.Unmarshal(b, &a) == nil && a.Output != nil && a.Status != "failed" && a.Status != "cancelled"
}

func outputEvent(data []byte) (done, part bool) {
	var a struct {
		Type  string `json:"type"`
		Delta any    `json:"delta"`
	}
	if json.Unmarshal(data, &a) != nil {
		return false, false
	}
	delta, _ := a.Delta.(string)
	return delta != "" || slices.Contains([]string{"response.completed", "response.incomplete"}, a.Type), false
}

// isAnswer accepts any answer to a probe of the model file but a page for people.
func isAnswer(contentType string, _ []byte) bool { return contentType != "text/html" }

// audioRequest is a form with half a second of silence.
func audioRequest(name string) (contentType string, body []byte) {
	const rate, samples = 16000, 8000
	wav := []byte("RIFF\x00\x00\x00\x00WAVEfmt " +
		"\x10\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00")
	put := binary.LittleEndian.PutUint32
	put(wav[4:], uint32(len(wav)-8+2*samples))
	put(wav[24:], rate)
	put(wav[28:], 2*rate)
	put(wav[40:], 2*samples)
	wav = append(wav, make([]byte, 2*samples)...)
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	form.WriteField("model", name) // writes to a buffer do not fail
	form.WriteField("response_format", "json")
	if file, err := form.CreateFormFile("file", "silence.wav"); err == nil {
		file.Write(wav)
	}
	form.Close()
	return form.FormDataContentType(), b.Bytes()
}
