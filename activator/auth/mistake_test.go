package auth

import (
	"net/http"
	"strings"
	"testing"
)

// TestMistake: keys as public reports have them; none is repeated.
func TestMistake(t *testing.T) {
	const key = Prefix + "c2VjcmV0"
	for _, c := range []struct{ name, value, want string }{
		{"Authorization", "", "none was sent. Send it as Authorization: Bearer KEY."},
		{"Authorization", "Bearer ", "none was sent"},
		{"Authorization", key, "Authorization lacks the word Bearer"},
		{"Authorization", "Bearer" + key, "Authorization lacks the word Bearer and a blank before it"},
		{"Authorization", "Token " + key, "Send Authorization: Bearer KEY"},
		{"Authorization", "Basic dXNlcjpwYXNz", "the scheme Basic"},
		{"Authorization", "Bearer Bearer " + key, "the word Bearer was sent twice"},
		{"X-Api-Key", "Bearer " + key, "x-api-key and api-key take the key alone"},
		{"Authorization", `Bearer "` + key + `"`, "with quotes or brackets around it"},
		{"Authorization", "Bearer <" + key + ">", "with quotes or brackets around it"},
		{"Authorization", "Bearer {'api_key': '" + key + "'}", "was not filled in"},
		{"Authorization", "Bearer $OPENAI_API_KEY", "the name of a variable was sent"},
		{"Authorization", "Bearer undefined", "a placeholder was sent: no key is set at the client"},
		{"Authorization", "Bearer EMPTY", "a placeholder was sent"},
		{"Authorization", "Bearer https://api.example.com/v1", "an address was sent"},
		{"Authorization", "Bearer sk-proj-abc", "begin with " + Prefix + " (its admin token"},
		{"Authorization", "Bearer " + key, "has no such key"},
		{"X-Api-Key", key, "has no such key"},
	} {
		h := http.Header{}
		h.Set(c.name, c.value)
		got := Mistake(h.Get)
		if !strings.Contains(got, c.want) || strings.Contains(got, "c2VjcmV0") || strings.Contains(got, "abc") {
			t.Errorf("%s: %q: %s", c.name, c.value, got)
		}
	}
	both := http.Header{"Authorization": {"Bearer x"}, "X-Api-Key": {key}}
	if got := Mistake(both.Get); !strings.Contains(got, "two were sent") {
		t.Error(got)
	}
}
