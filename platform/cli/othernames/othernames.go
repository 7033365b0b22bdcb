// Package othernames reads the log level of the command line from GATEWAY_LOG_LEVEL and
// GATEWAY_DEBUG where THAW_LOG_LEVEL is unset, and refuses with an error flags and environment
// variables that thaw does not support yet (shared sessions and batches).
package othernames

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"
)

// Getenv reads settings that have another name too: GATEWAY_LOG_LEVEL and
// GATEWAY_DEBUG are THAW_LOG_LEVEL, which overrules them.
func Getenv(getenv func(string) string) func(name string) string {
	return func(name string) string {
		value := getenv(name)
		if name != "THAW_LOG_LEVEL" || value != "" {
			return value
		}
		switch strings.ToLower(getenv("GATEWAY_DEBUG")) {
		case "", "0", "false", "no", "off":
		default:
			return "debug"
		}
		level := strings.ToLower(getenv("GATEWAY_LOG_LEVEL"))
		if level == "warning" {
			return "warn"
		}
		return level
	}
}

// Check refuses variables of later versions.
func Check(getenv func(string) string) error {
	for _, name := range []string{"GATEWAY_REDIS_URL", "THAW_SESSIONS"} {
		if getenv(name) != "" {
			return errors.New(name + ": not supported yet: sessions are in the memory of this server")
		}
	}
	if getenv("THAW_BATCHES") != "" {
		return errors.New("THAW_BATCHES: not supported yet: files and batches are in the data folder")
	}
	return nil
}

// RegisterFlags registers the flags of later versions, which are refused; help leaves
// them out.
func RegisterFlags(fs *pflag.FlagSet) {
	for _, name := range []string{"sessions", "batches"} {
		fs.Var(unsupportedFlag{}, name, "")
		fs.Lookup(name).Hidden = true
	}
}

type unsupportedFlag struct{}

func (unsupportedFlag) String() string   { return "" }
func (unsupportedFlag) Type() string     { return "string" }
func (unsupportedFlag) Set(string) error { return errors.New("not supported yet") }
