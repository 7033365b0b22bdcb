package auth

import (
	"cmp"
	"strings"
)

// placeholders are what clients send as their key where none is set.
const placeholders = " undefined null none nil nan empty false true key your_key your_api_key your-api-key " +
	"api_key apikey xxx xxxx sk-xxx sk-xxxx dummy "

// Mistake says what is wrong with the key that a client sent, or with how it sent it, and what to
// do; it quotes nothing of it. The key has been looked up, and is none of this server's.
func Mistake(header func(name string) string) string {
	given, secret := strings.TrimSpace(header("Authorization")), Secret(header)
	scheme, _, _ := strings.Cut(given, " ")
	switch other := cmp.Or(header("X-Api-Key"), header("Api-Key")); {
	case secret == "" && strings.EqualFold(scheme, "Basic"):
		return "it came with the scheme Basic. Send it as Authorization: Bearer KEY."
	case secret == "" && given != "" && !strings.EqualFold(given, "Bearer"):
		return "Authorization lacks the word Bearer and a blank before it. Send Authorization: Bearer KEY."
	case secret == "":
		return "none was sent. Send it as Authorization: Bearer KEY."
	case other != "" && other != secret:
		return "two were sent: the one in Authorization counts, not that in x-api-key or api-key."
	}
	switch low := strings.ToLower(secret); {
	case strings.HasPrefix(low, "bearer") && given == "":
		return "the word Bearer was sent with it: x-api-key and api-key take the key alone."
	case strings.HasPrefix(low, "bearer"):
		return "the word Bearer was sent twice: the client adds it by itself."
	case strings.Trim(secret, "\"'<>") != secret:
		return "it was sent with quotes or brackets around it: leave them out."
	case strings.HasPrefix(secret, "$") || strings.HasPrefix(secret, "%") || strings.HasPrefix(secret, "{"):
		return "the name of a variable was sent, or an object, in place of its value: the client's setting was not filled in."
	case strings.Contains(placeholders, " "+low+" "):
		return "a placeholder was sent: no key is set at the client."
	case strings.Contains(secret, "://"):
		return "an address was sent in its place."
	case !strings.HasPrefix(secret, Prefix):
		return "keys of this server begin with " + Prefix + " (its admin token is in DATA/admin-token), and the one that was sent does not. " +
			"`thaw keys create` makes one."
	}
	return "this server has no such key, or has it no more. `thaw keys create` makes one."
}
