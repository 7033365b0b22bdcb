package cli

import (
	"errors"
	"strings"
)

// gatewayNames reads settings that have another name too: GATEWAY_LOG_LEVEL and
// GATEWAY_DEBUG are THAW_LOG_LEVEL, which overrules them.
func gatewayNames(getenv func(string) string) func(name string) string {
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

// checkUnsupported refuses settings of later versions, which must not be ignored.
func checkUnsupported(getenv func(string) string) error {
	for _, name := range []string{"GATEWAY_REDIS_URL", "THAW_SESSIONS"} {
		if getenv(name) != "" {
			return errors.New(name + ": not supported yet: sessions are in the memory of this server")
		}
	}
	return nil
}

// unsupportedFlag is the flag of such a setting. Help leaves it out.
type unsupportedFlag struct{}

func (unsupportedFlag) String() string   { return "" }
func (unsupportedFlag) Type() string     { return "string" }
func (unsupportedFlag) Set(string) error { return errors.New("not supported yet") }
