package functions

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// maxURL bounds the URL of a Remote in bytes.
const maxURL = 2048

// ValidateRemote lists the problems of r. plain reports whether the operator allows plain
// HTTP to the host of a URL; nil: the caller does not know, and the server checks. The
// texts quote no key: neither one in the URL nor what stands in keyFrom.
func ValidateRemote(r *Remote, plain func(*url.URL) bool) []Problem {
	var p problems
	p.checkFunction(r.APIVersion, r.Kind, KindRemote, r.Metadata)
	s := &r.Spec
	if message, hint := checkURL(s.URL, plain); message != "" {
		p.add("spec.url", hint, "%s", message)
	}
	if len(s.Model) > 256 || !printable(s.Model) {
		p.add("spec.model", "the name that the other side gives its model", "%q is longer than 256 bytes or holds a control character",
			Clip(s.Model))
	}
	if s.KeyFrom.Env != "" && s.KeyFrom.File != "" {
		p.add("spec.keyFrom", "leave one out", "both env and file are given, and there is one key")
	}
	if e := s.KeyFrom.Env; e != "" && !isEnv(e) {
		p.add("spec.keyFrom.env", "the name of the variable, not the key", "this is no name of an environment variable")
	}
	if f := s.KeyFrom.File; f != "" && (!printable(f) || strings.Contains(f, "://")) {
		p.add("spec.keyFrom.file", "such as /run/secrets/cloud-key", "this is no path of a file")
	}
	p.checkPrice("spec.price", s.Price)
	l := s.Limits
	p.checkLimits([]limit{{"concurrent", l.Concurrent}, {"requestsPerMinute", l.RequestsPerMinute}, {"tokensPerMinute", l.TokensPerMinute}})
	p.checkAmount("spec.limits.spendPerDay", s.Limits.SpendPerDay)
	p.checkDuration("spec.timeouts.connect", s.Timeouts.Connect)
	p.checkDuration("spec.timeouts.firstToken", s.Timeouts.FirstToken)
	p.checkDuration("spec.timeouts.idle", s.Timeouts.Idle)
	checkWord(&p, "spec.allow", "class of data", s.Allow, DataClasses)
	return p
}

func checkURL(s string, plain func(*url.URL) bool) (message, hint string) {
	const like = "such as https://api.example.com/v1"
	switch {
	case s == "":
		return "a URL is needed", like
	case len(s) > maxURL:
		return fmt.Sprintf("the URL is longer than %d bytes", maxURL), like
	case !printable(s) || strings.ContainsAny(s, " \\"):
		return "the URL holds a blank, a backslash or a control character", like
	case !strings.Contains(s, "://"):
		return fmt.Sprintf("%q is no URL", Clip(noSecret(s))), fmt.Sprintf("did you mean https://%s?", Clip(noSecret(s)))
	}
	u, err := url.Parse(s)
	if err != nil {
		return "this is no URL", like // the error would quote it
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Sprintf("a Remote is reached over https, not %s", Clip(u.Scheme)), like
	case u.User != nil:
		return "a URL carries no user and password", "the key comes from keyFrom: {env: NAME} or {file: PATH}"
	case strings.Contains(s, "?"):
		return "a base URL has no query", "the key comes from keyFrom: {env: NAME} or {file: PATH}; Azure's base, " +
			"https://NAME.openai.azure.com/openai/v1, needs no api-version"
	case strings.Contains(s, "#"):
		return "a base URL has no fragment", like
	case u.Hostname() == "" || !validPort(u):
		return fmt.Sprintf("%q has no host, or a port that is none", Clip(s)), like
	}
	for _, end := range []string{"/chat/completions", "/completions", "/embeddings", "/responses", "/messages"} {
		if base, cut := strings.CutSuffix(strings.TrimRight(s, "/"), end); cut {
			return fmt.Sprintf("%q is one endpoint, and the base of all is wanted", Clip(s)), fmt.Sprintf("did you mean %s?", Clip(base))
		}
	}
	if u.Scheme == "http" && !IsLoopbackHost(u.Hostname()) && plain != nil && !plain(u) {
		return "plain http would send the key and the prompts readable", "write https://, or name the host in THAW_SOURCE_HOSTS of the server"
	}
	return "", ""
}

func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.Atoi(u.Port())
	return err == nil && n > 0 && n < 1<<16
}

// IsLoopbackHost reports whether a host of a URL is this machine.
func IsLoopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
