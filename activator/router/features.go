package router

import (
	"github.com/thaw-dev/thaw/activator/router/prompt"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Features reads from the body of a request what rules decide by; env was peeked from
// it. RepeatedPrefix and Session need more than the body and are not set; Complexity (-1)
// and Intent are set by [Router.Decide] if a rule asks for them.
func (r *Router) Features(env *openai.Envelope, body []byte, path string) functions.RouteFeatures {
	if openai.IsForm(path) {
		return functions.RouteFeatures{Complexity: -1}
	}
	return prompt.Read(env, body)
}

// Text returns the text of a request that complexity and intents are judged by: that of
// the user's newest turn. It may be a part of body.
func Text(env *openai.Envelope, body []byte, path string) []byte {
	if openai.IsForm(path) {
		return nil
	}
	return prompt.Text(env, body)
}
