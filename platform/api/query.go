package api

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// query is the parsed query of a request; only names its row lists are in it.
type query map[string]string

// parseQuery returns as wrong a name that the row does not list, or that is there twice: a
// misspelt ?dryrun must not deploy.
func parseQuery(raw string, known []string) (q query, wrong string) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, cmp.Or(raw, "?")
	}
	q = query{}
	for name, v := range values {
		if !slices.Contains(known, name) || len(v) != 1 {
			return nil, cmp.Or(name, "=")
		}
		q[name] = v[0]
	}
	return q, ""
}

// switches are the names whose value is one of switchOn or switchOff.
var switches, switchOn, switchOff = []string{"watch", "follow", "dryRun"}, []string{"", "true", "1"}, []string{"false", "0"}

// badSwitch is a switch with another value; "" for none.
func (q query) badSwitch() string {
	for _, name := range switches {
		if v, ok := q[name]; ok && !slices.Contains(switchOn, v) && !slices.Contains(switchOff, v) {
			return name
		}
	}
	return ""
}

// on is whether a switch is there and not switched off.
func (q query) on(name string) bool {
	v, ok := q[name]
	return ok && slices.Contains(switchOn, v)
}

func (q query) number(name string, def, maximum int) (int, bool) {
	v, ok := q[name]
	if !ok {
		return def, true
	}
	n, err := strconv.Atoi(v)
	return n, err == nil && n >= 0 && n <= maximum
}

// limit is how many items of a list are asked for.
func (q query) limit() (int, *openai.Error) {
	n, ok := q.number("limit", 100, 1000)
	if !ok {
		return 0, openai.New(openai.InvalidValue, "limit is a number, at most 1000.").With("limit")
	}
	return n, nil
}

// names are names of functions, each with its team, parted by commas.
func (q query) names(name string) (names []functions.Name, ok bool) {
	for text := range strings.SplitSeq(q[name], ",") {
		if text == "" {
			continue
		}
		n, err := functions.ParseName(text, "")
		if err != nil || n.Team == "" || len(names) >= maxBeside {
			return nil, false
		}
		names = append(names, n)
	}
	return names, true
}
