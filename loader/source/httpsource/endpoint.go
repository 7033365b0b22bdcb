package httpsource

import (
	"net/url"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

// ParseEndpoint reads the address of a server that a variable names, without a slash at its end.
// login are the variables that hold the credentials for it.
func ParseEndpoint(variable, raw, login, example string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	switch {
	case strings.Contains(raw, "@"):
		return nil, source.Fail(source.BadSource, variable+" holds a name or a password, which is not sent",
			"leave it out: credentials come from "+login)
	case !strings.Contains(raw, "://"):
		return nil, source.Fail(source.BadSource, variable+Quote(raw)+" is not an http or https URL", "did you mean"+Quote("https://"+raw)+"?")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "":
		return nil, source.Fail(source.BadSource, variable+Quote(raw)+" is not an http or https URL", "such as "+example)
	}
	return u, nil
}
