package s3

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/go-ini/ini"
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

// readProfile returns the region and the endpoint for S3 of the profile in use, as in
// docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html; "" where the config
// file names none or cannot be read.
func readProfile(env func(string) string) (region, endpoint string) {
	f, err := ini.LoadSources(ini.LoadOptions{AllowNestedValues: true, SpaceBeforeInlineComment: true}, configFile(env))
	if err != nil {
		return "", ""
	}
	p := f.Section(configSection(env))
	region, endpoint = p.Key("region").String(), p.Key("endpoint_url").String()
	for _, line := range f.Section("services " + p.Key("services").String()).Key("s3").NestedValues() {
		if name, value, _ := strings.Cut(line, "="); strings.TrimSpace(name) == "endpoint_url" {
			endpoint = strings.TrimSpace(value)
		}
	}
	return region, endpoint
}
