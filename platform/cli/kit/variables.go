package kit

import (
	"regexp"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

const variablePrefix = "THAW_"

// otherAddrs are what other programs name the setting addr.
var otherAddrs = []string{"port", "listen", "bind"}

// Variables are the names of the environment variables of these settings.
func Variables(configs ...any) (names []string) {
	for _, c := range configs {
		for _, s := range Settings(c) {
			names = append(names, s.env)
		}
	}
	return names
}

// foreignVariable matches the variables that Kubernetes and docker set for a Service that is
// named thaw…, and those that may hold a key for a Remote, whose file names them.
var foreignVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)|_(KEY|TOKEN|SECRET|PASSWORD)$`)

// UnknownVariables reports each variable of environ that is named THAW_… and is none of known,
// with the known one that may be meant; "" where none is like it.
func UnknownVariables(environ, known []string, report func(name, meant string)) {
	short := functions.ConvertAll(known, func(name string) string { return strings.TrimPrefix(name, variablePrefix) })
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		word, ours := strings.CutPrefix(name, variablePrefix)
		link := strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://") // also of Kubernetes
		if !ours || link || slices.Contains(known, name) || foreignVariable.MatchString(name) {
			continue
		}
		meant := ""
		switch near := functions.Nearest(word, short, 1); {
		case slices.Contains(otherAddrs, strings.ToLower(word)):
			meant = variablePrefix + "ADDR"
		case len(near) > 0:
			meant = variablePrefix + near[0]
		}
		report(name, meant)
	}
}
