package s3

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-ini/ini"

	"github.com/thaw-dev/thaw/functions"
)

// configFile is the file in which the profiles of AWS's tools may have their keys too.
func configFile(env func(string) string) string {
	if named := env("AWS_CONFIG_FILE"); named != "" {
		return named
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".aws", "config")
}

// configSection is the section of the config file for the profile in use.
func configSection(env func(string) string) string {
	if name := env("AWS_PROFILE"); name != "" && name != "default" {
		return "profile " + name
	}
	return "default"
}

// profileWithoutKey describes why the profile in use gives no key; "" where none is named, or
// nothing is known of it.
func profileWithoutKey(env func(string) string) string {
	const export = ": run eval \"$(aws configure export-credentials --format env)\" before thaw"
	name := cmp.Or(env("AWS_PROFILE"), "default")
	if f, err := ini.LoadSources(ini.LoadOptions{AllowNestedValues: true, SpaceBeforeInlineComment: true}, configFile(env)); err == nil {
		for _, key := range []string{"sso_session", "sso_start_url", "login_session", "role_arn", "credential_process"} {
			if f.Section(configSection(env)).HasKey(key) {
				return fmt.Sprintf(": the profile %q has %s, which is not followed%s", functions.Clip(name), key, export)
			}
		}
	}
	for _, variable := range []string{"AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"} {
		if _, err := os.Stat(env(variable)); err != nil && env(variable) != "" {
			return fmt.Sprintf(": %s names %q: %v", variable, functions.Clip(env(variable)), errors.Unwrap(err))
		}
	}
	if env("AWS_PROFILE") == "" {
		return ""
	}
	return fmt.Sprintf(": the profile %q of AWS_PROFILE is not there, or has no key", functions.Clip(name))
}

// profile is what a profile says of the servers to ask.
type profile struct{ region, endpoint, fips, dualstack string }

// readProfile returns the region and the endpoint for S3 of the profile in use, as in
// docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html; nothing where the config
// file names none or cannot be read.
func readProfile(env func(string) string) (out profile) {
	f, err := ini.LoadSources(ini.LoadOptions{AllowNestedValues: true, SpaceBeforeInlineComment: true}, configFile(env))
	if err != nil {
		return out
	}
	p := f.Section(configSection(env))
	value := func(key string) string { return p.Key(key).String() }
	out = profile{value("region"), value("endpoint_url"), value("use_fips_endpoint"), value("use_dualstack_endpoint")}
	for _, line := range f.Section("services " + value("services")).Key("s3").NestedValues() {
		if name, value, _ := strings.Cut(line, "="); strings.TrimSpace(name) == "endpoint_url" {
			out.endpoint = strings.TrimSpace(value)
		}
	}
	return out
}
