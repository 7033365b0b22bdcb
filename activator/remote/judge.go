package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// maxPause bounds the pause that another side may ask for.
const maxPause = 24 * time.Hour

// Judge reads the beginning of the answer: body is its first bytes, all of them where
// whole is set; err is why there is none, which must not be that the client left. The
// error, if any, is the answer for the client in place of the other side's.
func (c *Call) Judge(res *upstream.Response, body []byte, whole bool, err error) *openai.Error {
	switch {
	case err != nil:
		return c.judgeError(err)
	case res.Status >= 300:
		return c.judgeStatus(res, body, whole)
	}
	kind := res.Header("content-type")
	events, isJSON := strings.HasPrefix(kind, "text/event-stream"), strings.HasPrefix(kind, "application/json")
	if at := openai.FindEndpoint(c.request.Endpoint); !events && !isJSON && !(at != nil && at.Media()) {
		return c.garbage("its answer is no JSON but " + strconv.Quote(functions.Clip(kind)) + c.words(body, whole) + c.pathHint())
	}
	if isJSON && whole && !jsontext.Value(bytes.TrimSpace(body)).IsValid() {
		return c.garbage("its answer is no JSON" + c.words(body, whole))
	}
	var failure *openai.Error
	switch {
	case events:
		failure, _ = openai.Failure(body)
	case isJSON && whole && c.request.Endpoint != "/v1/responses": // there it is a member of answers
		failure = openai.WholeError(body)
	}
	if failure != nil {
		return c.judgeFrame(failure)
	}
	c.t.mu.Lock()
	changed := c.t.circuit.began(c.probe)
	c.t.mu.Unlock()
	if changed {
		c.t.owner.publish(c.t)
	}
	return nil
}

// Fail notes a failure of the other side, such as an answer that broke off in its middle.
func (c *Call) Fail(problem string) { c.proved, c.problem = failed, problem }

func (c *Call) garbage(problem string) *openai.Error {
	c.Fail(problem)
	return c.broken(problem)
}

func (c *Call) broken(problem string) *openai.Error {
	return openai.New(openai.EngineCrashed, fmt.Sprintf("The remote `%s` failed: %s.", c.t.spec.Metadata.Name, problem))
}

func (c *Call) judgeError(err error) *openai.Error {
	switch {
	case errors.Is(err, upstream.ErrDial):
		c.Fail(c.describeDial(err))
		return c.t.unavailable(c.problem)
	case errors.Is(err, upstream.ErrSilent):
		c.Fail("it is silent for longer than " + c.silence())
		return openai.New(openai.EngineHung, fmt.Sprintf("The remote `%s` did not answer: %s.", c.t.spec.Metadata.Name, c.problem))
	case errors.Is(err, upstream.ErrProtocol):
		return c.garbage("its answer is not HTTP")
	case errors.Is(err, errEncoded):
		return c.garbage(err.Error())
	}
	return c.garbage("its connection broke before the answer was there")
}

// silence is the bound of how long it may be silent now.
func (c *Call) silence() string {
	first, idle := c.t.timeouts.FirstToken.Std(), c.t.timeouts.Idle.Std()
	switch {
	case c.status > 0:
		return fmt.Sprintf("timeouts.idle (%s)", idle)
	case c.request.Stream || !c.request.Generates:
		return fmt.Sprintf("timeouts.firstToken (%s)", first)
	}
	return fmt.Sprintf("timeouts.firstToken (%s) and timeouts.idle (%s) together", first, idle)
}

// Reword makes the error of an engine that broke off its answer that of the Remote. c may be nil.
func (c *Call) Reword(e *openai.Error) {
	if c == nil {
		return
	}
	e.Message = strings.Replace(e.Message, "The engine", "The remote `"+c.t.spec.Metadata.Name+"`", 1)
	if e.Code == openai.EngineHung {
		e.Message += " It was silent for longer than " + c.silence() + "."
	}
}

// describeDial describes why there is no connection.
func (c *Call) describeDial(err error) string {
	addr, refused := httpsource.IsRefused(err)
	switch {
	case refused:
		return fmt.Sprintf("its address %s is not public; name its host in %s if it is meant", addr, httpsource.HostsVariable)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("there is no connection to %s within %s (timeouts.connect)", c.t.addr, c.t.timeouts.Connect.Std())
	case errors.Is(err, syscall.ECONNREFUSED):
		return c.t.addr + " refuses connections: start it, or correct url"
	}
	e := httpsource.NoAnswer(err)
	return fmt.Sprintf("there is no connection to %s: %s (%s)", c.t.addr, e.Detail, e.Fix)
}

// words are the other side's own, behind a colon; "" there are none that may be shown.
func (c *Call) words(body []byte, whole bool) string {
	e := openai.EngineError(500, nil, body, time.Time{})
	if !c.passes(body, whole) || strings.HasPrefix(e.Message, "The engine answered with status") { // it has none
		return ""
	}
	return ": " + functions.Clip(strings.TrimRight(e.Message, ". \n"))
}

// keyPlace is where the key comes from.
func (t *target) keyPlace() string {
	switch from := t.spec.Spec.KeyFrom; {
	case from.Env != "":
		return "which is in the variable " + from.Env + ", read when thaw starts"
	case t.keyFile.path != "":
		return "which is in the file that keyFrom names"
	}
	return "which is none: set keyFrom"
}

// judgeStatus handles an answer that is no success.
func (c *Call) judgeStatus(res *upstream.Response, body []byte, whole bool) *openai.Error {
	name, status, words := c.t.spec.Metadata.Name, res.Status, c.words(body, whole)
	switch {
	case status < 400:
		c.proved, c.problem = misconfigured, fmt.Sprintf("it redirects (%d) to %q, and redirects are not followed; set url to where the API is",
			status, functions.Clip(res.Header("location")))
		return c.broken(c.problem).Final()
	case status == 401 || status == 403 && judgeForbidden(body) == misconfigured:
		c.proved, c.problem = misconfigured, fmt.Sprintf("it refuses the key of this server (%d%s), %s", status, words, c.t.keyPlace())
		return c.t.unavailable(c.problem).Final()
	case status == 403:
		c.proved, c.problem = judgeForbidden(body), "it refuses what this server asks it for (403"+words+")"
	case status == 429:
		c.proved = good
		c.holdRequests()
	case status == 503 && c.after != "": // a side that loads its model, or is full
		c.proved = good
	case status >= 500:
		c.Fail(fmt.Sprintf("it answers with status %d%s", status, words))
	default:
		c.proved = good
	}
	passes := c.passes(body, whole)
	if hint := c.pathHint(); hint != "" && (status == 404 || status == 405) && !bytes.Contains(body, []byte("model")) {
		_, path := c.t.path(c.request.Endpoint)
		return openai.New(openai.UnknownEndpoint, fmt.Sprintf("The remote `%s` answers %d at %s%s%s.", name, status, path, words, hint))
	}
	if !passes {
		body = nil
	}
	switch e := openai.EngineError(status, res.Header, body, c.t.owner.o.Now()); {
	case status == 404 && e.JSON != nil && bytes.Contains(body, []byte("model")):
		e.JSON, e.Message = nil, fmt.Sprintf("The remote `%s` answers 404%s (model: %s in its file)", name, words, functions.Clip(c.Model()))
		return e
	case e.JSON != nil:
		return nil
	case status == 404 || status == 405:
		return openai.New(openai.UnknownEndpoint, fmt.Sprintf("The remote `%s` does not serve %s%s.", name, c.request.Endpoint, words))
	default:
		e.Message = fmt.Sprintf("The remote `%s` answers %d%s", name, status, cmp.Or(words, " without words that may be shown"))
		return e
	}
}

// pathHint is what may be wrong with a url that has no version in its path; "" it has one.
func (c *Call) pathHint() string {
	if strings.Contains(c.t.prefix, "/v") {
		return ""
	}
	return "; the url of most servers ends with /v1, such as " + strings.TrimRight(functions.Clip(c.t.spec.Spec.URL), "/") + "/v1"
}

// passes reports whether the body of an error may go to the client, in the other side's
// words: it does not repeat the key.
func (c *Call) passes(body []byte, whole bool) bool {
	return whole && (c.key == "" || !bytes.Contains(body, []byte(c.key)))
}

// judgeFrame handles an error that came with a status of success.
func (c *Call) judgeFrame(e *openai.Error) *openai.Error {
	message := functions.Clip(e.Message)
	if c.key != "" && (strings.Contains(e.Message, c.key) || bytes.Contains(e.JSON, []byte(c.key))) {
		message = "it sent an error"
		e.Message, e.JSON = "The remote refused the request.", nil
	}
	if hint := c.pathHint(); hint != "" && strings.HasPrefix(e.Message, "Unexpected endpoint") { // LM Studio answers so with 200
		return openai.New(openai.UnknownEndpoint, fmt.Sprintf("The remote `%s` answers: %s%s.", c.t.spec.Metadata.Name, message, hint))
	}
	c.status = e.Status // which is charged for nothing
	if e.Status < 500 {
		c.proved = good
		return e
	}
	return c.garbage(message)
}

// holdRequests keeps requests back until the other side takes some again.
func (c *Call) holdRequests() {
	t, now := c.t, c.t.owner.o.Now()
	until := now.Add(openai.ParseRetryAfter(c.after, now, maxPause))
	t.mu.Lock()
	defer t.mu.Unlock()
	if until.After(t.heldUntil) {
		t.heldUntil = until
	}
}

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
