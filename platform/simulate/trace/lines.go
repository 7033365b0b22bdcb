package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const maxTokens = 100_000_000

func tokens(field string, n float64) (int, error) {
	if math.IsNaN(n) || n < 0 || n > maxTokens {
		return 0, fmt.Errorf("%s: %v is no number of tokens", field, n)
	}
	return int(n), nil
}

// parseMooncake reads {"timestamp": ms, "input_length": n, "output_length": n, …}.
func parseMooncake(line []byte) (at time.Time, r Request, ok bool, err error) {
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return at, r, false, nil
	}
	var v struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *float64 `json:"input_length"`
		Output    *float64 `json:"output_length"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return at, r, false, unmarshalled(err)
	}
	switch {
	case v.Timestamp == nil:
		return at, r, false, errors.New("timestamp is missing")
	case v.Input == nil || v.Output == nil:
		return at, r, false, errors.New("input_length or output_length is missing")
	case *v.Timestamp < 0 || *v.Timestamp > 1e15:
		return at, r, false, fmt.Errorf("timestamp: %v is no time in milliseconds", *v.Timestamp)
	}
	if r.Input, err = tokens("input_length", *v.Input); err != nil {
		return at, r, false, err
	}
	if r.Output, err = tokens("output_length", *v.Output); err != nil {
		return at, r, false, err
	}
	return time.UnixMicro(int64(*v.Timestamp * 1e3)), r, true, nil
}

func unmarshalled(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return fmt.Errorf("%s: %s where a number is wanted", e.Field, e.Value)
	}
	return fmt.Errorf("no JSON object: %v", err)
}

// llmTimes are the time formats of the Azure LLM traces of 2023 and 2024.
var llmTimes = []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999-07:00", time.RFC3339Nano}

// parseLLM reads TIMESTAMP,ContextTokens,GeneratedTokens.
func parseLLM(line []byte) (at time.Time, r Request, ok bool, err error) {
	text := strings.TrimPrefix(strings.TrimSpace(string(line)), "\ufeff")
	if text == "" || strings.HasPrefix(strings.ToUpper(text), "TIMESTAMP,") {
		return at, r, false, nil
	}
	cells := strings.Split(text, ",")
	if len(cells) != 3 {
		return at, r, false, fmt.Errorf("%d columns where TIMESTAMP, ContextTokens and GeneratedTokens are wanted", len(cells))
	}
	for _, layout := range llmTimes {
		if at, err = time.Parse(layout, strings.TrimSpace(cells[0])); err == nil {
			break
		}
	}
	if err != nil || at.Year() < 1970 || at.Year() > 2200 {
		return at, r, false, fmt.Errorf("TIMESTAMP: %q is no time such as 2023-11-16 18:15:46.68", functions.Clip(cells[0]))
	}
	for i, to := range []*int{&r.Input, &r.Output} {
		field := []string{"ContextTokens", "GeneratedTokens"}[i]
		n, err := strconv.ParseFloat(strings.TrimSpace(cells[i+1]), 64)
		if err != nil {
			return at, r, false, fmt.Errorf("%s: %q is no number", field, functions.Clip(cells[i+1]))
		}
		if *to, err = tokens(field, n); err != nil {
			return at, r, false, err
		}
	}
	return at, r, true, nil
}

// access is a request's line of thaw serve's log.
type access struct {
	Time       string          `json:"time"`
	Msg        string          `json:"msg"`
	Model      string          `json:"model"`
	Team       string          `json:"team"`
	Code       int             `json:"code"`
	Took       json.RawMessage `json:"took"` // nanoseconds in JSON; such as 1.5s in text
	FirstToken json.RawMessage `json:"first_token"`
	Prompt     float64         `json:"prompt_tokens"`
	Completion float64         `json:"completion_tokens"`
}

// errForeign is the error of a line that is none of thaw's log: what else was written to the
// same file.
var errForeign = errors.New("no line of a log")

// isForeign reports whether a line is no beginning of a line of thaw's log.
func isForeign(line []byte) bool { return line[0] != '{' && !bytes.HasPrefix(line, []byte("time=")) }

// parseThaw parses a line of thaw serve's log, as text or JSON. The line is written at
// the request's end, so the arrival is its time minus its duration. It skips other
// lines, requests that named no model, and client errors: these needed no GPU.
func parseThaw(line []byte) (at time.Time, r Request, ok bool, err error) {
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return at, r, false, nil
	}
	var a access
	if isForeign(line) {
		return at, r, false, errForeign
	} else if line[0] == '{' {
		if err := json.Unmarshal(line, &a); err != nil {
			return at, r, false, unmarshalled(err)
		}
	} else if err := a.logfmt(string(line)); err != nil {
		return at, r, false, err
	}
	if a.Msg == "" {
		return at, r, false, errForeign
	}
	if a.Msg != "request" || a.Model == "" || a.Code >= 400 && a.Code < 500 && a.Code != 408 && a.Code != 429 && a.Code != 499 {
		return at, r, false, nil
	}
	if at, err = time.Parse(time.RFC3339Nano, a.Time); err != nil || at.Year() < 1970 || at.Year() > 2200 {
		return at, r, false, fmt.Errorf("time: %q is no time", functions.Clip(a.Time))
	}
	took, err := parseDuration(a.Took)
	if err != nil {
		return at, r, false, fmt.Errorf("took: %w", err)
	}
	at = at.Add(-took)
	if r.Function, err = functions.ParseName(a.Model, functions.DefaultTeam); err != nil {
		return at, r, false, fmt.Errorf("model: %w", err)
	}
	if r.Team = a.Team; r.Team != "" && !functions.IsLabel(r.Team) {
		return at, r, false, fmt.Errorf("team: %q is no name of a team", functions.Clip(r.Team))
	}
	if r.Input, err = tokens("prompt_tokens", a.Prompt); err != nil {
		return at, r, false, err
	}
	if r.Output, err = tokens("completion_tokens", a.Completion); err != nil {
		return at, r, false, err
	}
	if a.Code == 499 && len(a.FirstToken) == 0 {
		r.ClientTimeout = max(took, time.Millisecond) // the client disconnected before the first byte
	}
	return at, r, true, nil
}

// parseDuration parses a duration as slog writes it: nanoseconds in JSON, 1.5s in text.
func parseDuration(raw []byte) (time.Duration, error) {
	text := strings.Trim(string(raw), `"`)
	d, err := time.ParseDuration(text)
	if n, e := strconv.ParseInt(text, 10, 64); e == nil {
		d, err = time.Duration(n), nil
	}
	if err != nil || d < 0 || d > 7*24*time.Hour {
		return 0, fmt.Errorf("%q is no duration of a request", functions.Clip(text))
	}
	return d, nil
}

// logfmt parses KEY=VALUE … as slog's text handler writes it.
func (a *access) logfmt(line string) error {
	for line = strings.TrimLeft(line, " "); line != ""; line = strings.TrimLeft(line, " ") {
		key, rest, ok := strings.Cut(line, "=")
		if !ok || key == "" || strings.ContainsAny(key, " \t") {
			return fmt.Errorf("%q where KEY=VALUE is wanted", functions.Clip(line))
		}
		value := rest
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return fmt.Errorf("%s: a quote is not closed", functions.Clip(key))
			}
			line = rest[len(quoted):]
			if value, err = strconv.Unquote(quoted); err != nil {
				return fmt.Errorf("%s: %v", functions.Clip(key), err)
			}
		} else {
			value, line, _ = strings.Cut(rest, " ")
		}
		var err error
		switch key {
		case "time":
			a.Time = value
		case "msg":
			a.Msg = value
		case "model":
			a.Model = value
		case "team":
			a.Team = value
		case "took":
			a.Took = json.RawMessage(value)
		case "first_token":
			a.FirstToken = json.RawMessage(value)
		case "code":
			a.Code, err = strconv.Atoi(value)
		case "prompt_tokens":
			a.Prompt, err = strconv.ParseFloat(value, 64)
		case "completion_tokens":
			a.Completion, err = strconv.ParseFloat(value, 64)
		}
		if err != nil && (a.Msg == "request" || a.Msg == "") {
			return fmt.Errorf("%s: %q is no number", key, functions.Clip(value))
		}
	}
	return nil
}
