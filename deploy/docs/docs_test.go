// Package docs tests that the commands, flags, metrics and links in this folder's guides
// exist.
package docs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// page is one guide, and README.md beside them.
type page struct {
	path, text string
}

func readPages(t *testing.T) []page {
	t.Helper()
	paths, err := filepath.Glob("*.md")
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d guides (%v)", len(paths), err)
	}
	var pages []page
	for _, p := range append(paths, "../../README.md") {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, page{p, string(b)})
	}
	return pages
}

// help prints the help of a verb of thaw, and reports whether there is such a verb.
func help(t *testing.T, words ...string) (string, bool) {
	t.Helper()
	var out bytes.Buffer
	code := cli.Main(t.Context(), append(slices.Clone(words), "--help"), strings.NewReader(""), &out, &out, cli.Programs{})
	return out.String(), code == 0 && strings.Contains(out.String(), "thaw "+strings.Join(words, " "))
}

// sources is the text of all Go files of the programs that are no tests.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"activator", "bench", "functions", "loader", "platform", "runtime"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
				return err
			}
			b, err := os.ReadFile(p)
			all.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

var (
	code      = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```|`([^`]+)`")
	link      = regexp.MustCompile(`\]\(([^)#]+)\)`)
	flagWord  = regexp.MustCompile(`(?:^|[\s(|])--([a-z][a-z0-9-]*)`)
	metric    = regexp.MustCompile(`\bthaw_[a-z_]+\b`)
	variable  = regexp.MustCompile(`\bTHAW_[A-Z_]+\b`)
	apiPath   = regexp.MustCompile(`/api/v1/[a-z{}/]+`)
	target    = regexp.MustCompile(`\bmake ([a-z][a-z-]*)`)
	firstCell = regexp.MustCompile(`(?m)^\|[^|]*\|`)
	mention   = regexp.MustCompile("thaw\\.dev/[a-z-]+|`([45]\\d\\d )?([a-z]+_[a-z_]+)`")
)

// snippets are the code blocks and code spans of a page, a command line each: a
// span's line breaks are joined.
func (p page) snippets() (lines []string) {
	for _, m := range code.FindAllStringSubmatch(p.text, -1) {
		if m[1] == "" {
			lines = append(lines, strings.Join(strings.Fields(m[2]), " "))
			continue
		}
		lines = append(lines, strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n")...)
	}
	return lines
}

// foreign are flags of other programs that the guides show.
var foreign = []string{"blobPort", "port", "model", "max-model-len", "enable-sleep-mode"}

// TestFlags looks up each flag in the help of the verb that its line calls, and each
// other flag in the sources.
func TestFlags(t *testing.T) {
	text := sources(t)
	checked := 0
	for _, p := range readPages(t) {
		for _, line := range p.snippets() {
			command, _, _ := strings.Cut(line, " # ")
			words := strings.Fields(command)
			var verb []string
			// The benchmarks parse their own flags.
			if len(words) > 1 && (words[0] == "thaw" || words[0] == "bin/thaw") && words[1] != "bench" {
				for _, w := range words[1:min(len(words), 3)] {
					if w = strings.Trim(w, "[]"); !regexp.MustCompile(`^[a-z]+$`).MatchString(w) {
						break
					}
					if _, ok := help(t, append(slices.Clone(verb), w)...); !ok {
						break
					}
					verb = append(verb, w)
				}
				if len(verb) == 0 && !strings.HasPrefix(words[1], "-") && !strings.Contains(words[1], "|") {
					t.Errorf("%s: thaw has no verb %q: %s", p.path, words[1], line)
				}
			}
			for _, m := range flagWord.FindAllStringSubmatch(command, -1) {
				name := m[1]
				if slices.Contains(foreign, name) || slices.Contains([]string{"az", "kubectl", "helm", "oc"}, words[0]) {
					continue
				}
				checked++
				if len(verb) > 0 {
					if h, _ := help(t, verb...); !strings.Contains(h, "--"+name) {
						t.Errorf("%s: thaw %s has no flag --%s: %s", p.path, strings.Join(verb, " "), name, line)
					}
				} else if !strings.Contains(text, `"`+name+`"`) && !strings.Contains(text, `flag:"`+name) {
					t.Errorf("%s: no program has a flag --%s: %s", p.path, name, line)
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("checked %d flags: the search is broken", checked)
	}
}

// TestNames looks up metrics, variables, error codes, annotations and API paths.
func TestNames(t *testing.T) {
	text := sources(t)
	spec, err := os.ReadFile("../../platform/api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Paths map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(spec, &api); err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	policies, err := os.ReadFile("../kustomize/base/network-policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text += string(policies)
	for _, p := range readPages(t) {
		for _, name := range metric.FindAllString(p.text, -1) {
			if !strings.Contains(text, `"`+name+`"`) {
				t.Errorf("%s: there is no metric %s", p.path, name)
			}
		}
		for _, name := range variable.FindAllString(p.text, -1) {
			if !strings.Contains(text, name) && !strings.HasPrefix(name, "THAW_ENGINE_") {
				t.Errorf("%s: no program reads %s", p.path, name)
			}
		}
		for _, path := range apiPath.FindAllString(p.text, -1) {
			if _, ok := api.Paths[strings.TrimRight(path, "/")]; !ok && path != "/api/v1/" {
				t.Errorf("%s: the API has no path %s", p.path, path)
			}
		}
		for _, m := range target.FindAllStringSubmatch(strings.Join(p.snippets(), "\n"), -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: the Makefile has no target %s", p.path, m[1])
			}
		}
		current, renamed, _ := strings.Cut(p.text, "\n## Renamed\n")
		current += firstCell.ReplaceAllString(renamed, "") // of a row: the name that is gone
		for _, m := range mention.FindAllStringSubmatch(current, -1) {
			if name := m[2]; name != "" && !strings.Contains(text, `"`+name+`"`) && !strings.Contains(text, `json:"`+name+`,`) {
				t.Errorf("%s: no program has %s", p.path, name)
			}
			if name, ok := strings.CutPrefix(m[0], "thaw.dev/"); ok && name != "v" && !strings.Contains(text, "thaw.dev/"+name) && !strings.Contains(text, `"`+name+`"`) {
				t.Errorf("%s: no program knows %s", p.path, m[0])
			}
		}
	}
}

// TestMetricsAreListed: the page of metrics has each that a program declares.
func TestMetricsAreListed(t *testing.T) {
	declared, err := os.ReadFile("../../platform/telemetry/declared.go")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := os.ReadFile("metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\("(thaw_[a-z_]+)"`).FindAllSubmatch(declared, -1)
	if len(names) < 60 {
		t.Errorf("%d metrics are declared", len(names))
	}
	for _, m := range names {
		if !bytes.Contains(listed, append(append([]byte("`"), m[1]...), '`')) {
			t.Errorf("metrics.md does not list %s", m[1])
		}
	}
}

// TestExitCodesAreListed: the guide has each exit code of the verbs.
func TestExitCodesAreListed(t *testing.T) {
	guide, err := os.ReadFile("troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(guide), "Exit codes of the verbs:")
	for _, code := range []int{kit.ExitOK, kit.ExitFailed, kit.ExitUsage, kit.ExitNotFound, kit.ExitDenied, kit.ExitTimeout, kit.ExitUnavailable, kit.ExitInterrupted} {
		if !regexp.MustCompile(fmt.Sprintf(`\s%d [a-z]`, code)).MatchString(list) {
			t.Errorf("the exit code %d is not listed", code)
		}
	}
}

// TestLinks follows the links to files of the repository.
func TestLinks(t *testing.T) {
	for _, p := range readPages(t) {
		for _, m := range link.FindAllStringSubmatch(p.text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(p.path), m[1])); err != nil {
				t.Errorf("%s: %v", p.path, err)
			}
		}
	}
}

// TestDefinitions decodes the definition files that the guides show.
func TestDefinitions(t *testing.T) {
	n := 0
	for _, p := range readPages(t) {
		for _, m := range code.FindAllStringSubmatch(p.text, -1) {
			if !strings.HasPrefix(m[1], "apiVersion: thaw.dev/v1") {
				continue
			}
			n++
			if _, err := catalog.Decode(p.path, []byte(m[1])); err != nil {
				t.Errorf("%s: %v", p.path, err)
			}
		}
	}
	if n < 3 {
		t.Errorf("found %d definition files", n)
	}
}

// TestReadmeIsShort keeps README.md to what a newcomer reads in five minutes.
func TestReadmeIsShort(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b, []byte("\n")); n > 150 {
		t.Errorf("README.md has %d lines, at most 150 are allowed", n)
	}
}
