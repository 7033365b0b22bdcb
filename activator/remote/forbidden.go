package remote

import (
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// Codes and types of a 403 that are about the key or the account: every request would be
// refused.
var codesOfAccount = []string{
	"invalid_api_key", "authentication_error", "account_deactivated", "account_suspended", "organization_deactivated",
	"billing_not_active", "insufficient_balance", "insufficient_quota", "unsupported_country_region_territory", "ip_not_authorized",
}

// Codes and types of a 403 that are about one request.
var codesOfRequest = []string{
	"content_policy_violation", "content_filter", "moderation_blocked", "policy_violation", "safety", "flagged",
	"invalid_prompt", "model_not_found", "model_not_allowed", "data_class_refused",
}

// judgeForbidden is what a 403 proves. One that names neither the account nor the request
// counts as a failure: several in a row, without a success between them, open the circuit.
func judgeForbidden(body []byte) outcome {
	e := openai.EngineError(403, nil, body, time.Time{})
	is := func(words []string) bool {
		return slices.Contains(words, strings.ToLower(string(e.Code))) || slices.Contains(words, strings.ToLower(e.Type))
	}
	switch {
	case is(codesOfAccount):
		return misconfigured
	case is(codesOfRequest):
		return good
	}
	return failed
}
