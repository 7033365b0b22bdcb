package socket

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"

	"github.com/thaw-dev/thaw/functions/openai"
)

// Kinds of what a client sends.
const (
	kindPartial = "partial"
	kindSubmit  = "submit"
	kindCancel  = "cancel"
	kindPing    = "ping"
)

// message is what a client sends. Where neither Text nor Messages is set, a submit is of
// the last ones.
type message struct {
	Type     string         `json:"type"`
	Text     *string        `json:"text"`
	Messages jsontext.Value `json:"messages"`
}

// parseMessage reads a text frame. A JSON object with a "type" is a message; __submit__ and
// __ping__ are ones without anything else; any other frame is the text so far.
func parseMessage(b []byte) (m message, e *openai.Error) {
	switch string(b) {
	case "__submit__":
		return message{Type: kindSubmit}, nil
	case "__ping__":
		return message{Type: kindPing}, nil
	}
	if !isTyped(b) {
		text := string(b)
		return message{Type: kindPartial, Text: &text}, nil
	}
	if err := json.Unmarshal(b, &m, json.RejectUnknownMembers(true)); err != nil {
		return m, openai.New(openai.InvalidJSON, "The frame is not one of this protocol: it has type, and text or messages.")
	}
	given := m.Text != nil || m.Messages != nil
	switch {
	case m.Type != kindPartial && m.Type != kindSubmit && m.Type != kindCancel && m.Type != kindPing:
		return m, openai.New(openai.InvalidValue, "The type of a frame is partial, submit, cancel or ping.").With("type")
	case m.Text != nil && m.Messages != nil:
		return m, openai.New(openai.InvalidValue, "A frame has text or messages, not both.").With("messages")
	case m.Messages != nil && m.Messages.Kind() != '[':
		return m, openai.New(openai.InvalidValue, "messages is a list.").With("messages")
	case m.Type == kindPartial && !given:
		return m, openai.New(openai.MissingRequiredParameter, "A partial has text or messages.").With("text")
	case given && (m.Type == kindCancel || m.Type == kindPing):
		return m, openai.New(openai.InvalidValue, "A "+m.Type+" has neither text nor messages.").With("text")
	}
	return m, nil
}

// isTyped reports whether b is a JSON object with a string "type". A text that happens to
// be one must be sent in the text of a partial.
func isTyped(b []byte) bool {
	if b = bytes.TrimSpace(b); len(b) == 0 || b[0] != '{' {
		return false
	}
	var typed struct {
		Type *string `json:"type"`
	}
	return json.Unmarshal(b, &typed, jsontext.AllowDuplicateNames(true)) == nil && typed.Type != nil
}

// Frames to the client. Unknown values are left out.
type (
	intentFrame struct {
		Type       string  `json:"type"` // intent_change
		Old        string  `json:"old"`
		New        string  `json:"new"`
		Confidence float64 `json:"confidence"`
		Rule       string  `json:"rule,omitempty"`
		Target     string  `json:"target,omitempty"`
		Prepares   string  `json:"prepares,omitempty"` // model or adapter
	}
	startFrame struct {
		Type    string `json:"type"` // generation_start
		Adapter string `json:"adapter"`
		Model   string `json:"model"`
		Cold    bool   `json:"cold"`
		ETA     int    `json:"eta_s,omitzero"`
		Moved   string `json:"moved,omitempty"` // why it is another replica than the session's last: an admission.Moved
	}
	progressFrame struct {
		Type     string `json:"type"` // progress
		State    string `json:"state,omitempty"`
		Percent  *int   `json:"percent,omitempty"`
		ETA      *int   `json:"eta_s,omitempty"`
		Position *int   `json:"position,omitempty"`
		Why      string `json:"why,omitempty"` // the state is blocked, or a start is held up
	}
	// token frames, {"type":"token","content":TEXT}, are written by generation.take.

	completeFrame struct {
		Type   string         `json:"type"` // generation_complete
		Reason string         `json:"finish_reason,omitempty"`
		Usage  jsontext.Value `json:"usage"`
		Timing timing         `json:"timing"`
	}
	errorFrame struct {
		Type    string `json:"type"` // error
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	pongFrame struct {
		Type string `json:"type"` // pong
	}
)

// timing is in milliseconds.
type timing struct {
	FirstToken float64        `json:"first_token_ms,omitzero"`
	Total      float64        `json:"total_ms"`
	Phases     map[string]int `json:"phases_ms,omitempty"` // of a cold start
}
