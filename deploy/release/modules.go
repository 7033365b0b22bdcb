package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// module is what a program contains beside thaw: a Go module that it links, or a library of
// npm whose files it embeds.
type module struct {
	path, version, sum string
	licences           []string // SPDX identifiers, sorted
	npm                bool
}

// purl returns the module's package URL (github.com/package-url/purl-spec).
func (m module) purl() string {
	kind := "golang"
	if m.npm {
		kind = "npm"
	}
	return "pkg:" + kind + "/" + m.path + "@" + m.version
}

// source returns the address that the module comes from.
func (m module) source() string {
	if m.npm {
		return "https://www.npmjs.com/package/" + m.path + "/v/" + m.version
	}
	return "https://" + m.path
}

// comment states how the module's content is fixed.
func (m module) comment() string {
	if m.npm {
		return "embedded from " + npmFolder
	}
	return "go.sum " + m.sum
}

// npmFolder has the libraries of npm that thaw embeds, for the console.
const npmFolder = "platform/console/assets/npm"

// embeddedLibraries lists the libraries in a folder that has VERSIONS.txt, a line for each that
// begins with name, version and a comma, and a LICENSE-NAME.txt each (make console-vendor).
func embeddedLibraries(dir string) ([]module, error) {
	versions, err := os.ReadFile(filepath.Join(dir, "VERSIONS.txt"))
	if err != nil {
		return nil, err
	}
	var list []module
	for line := range strings.Lines(string(versions)) {
		head, _, ok := strings.Cut(line, ",")
		name, version, both := strings.Cut(head, " ")
		if !ok || !both {
			return nil, fmt.Errorf("%s/VERSIONS.txt: %q has no name, version and comma", dir, strings.TrimSpace(line))
		}
		m := module{path: name, version: version, npm: true}
		if m.licences, err = licencesOf(filepath.Join(dir, "LICENSE-"+name+".txt")); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// allowed are the licences that a module of the programs may have.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "Unlicense", "Zlib"}

// linkedModules lists the modules that a built program says it links, with their licences.
func linkedModules(program string) ([]module, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var list []module
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		list = append(list, module{path: d.Path, version: d.Version, sum: d.Sum})
	}
	return list, findLicences(list)
}

// dependencies lists the modules of the packages that a main package imports, with their
// licences. Nothing is built.
func dependencies(pkg string) ([]module, error) {
	b, err := runGo("list", "-deps", "-f", `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}`, pkg)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	slices.Sort(lines)
	var list []module
	for _, line := range slices.Compact(lines) {
		if path, version, ok := strings.Cut(line, " "); ok {
			list = append(list, module{path: path, version: version})
		}
	}
	return list, findLicences(list)
}

func runGo(args ...string) ([]byte, error) {
	c := exec.Command("go", args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	b, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", args[0], err, stderr.String())
	}
	return b, nil
}

// findLicences reads the licences of modules in the module cache.
func findLicences(list []module) error {
	args := []string{"list", "-m", "-f", "{{.Path}} {{.Dir}}"}
	for _, m := range list {
		args = append(args, m.path)
	}
	b, err := runGo(args...)
	if err != nil {
		return err
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(b)) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		dirs[path] = dir
	}
	for i := range list {
		dir := dirs[list[i].path]
		if dir == "" {
			return fmt.Errorf("%s is not in the module cache: go mod download", list[i].path)
		}
		if list[i].licences, err = licencesIn(dir); err != nil {
			return fmt.Errorf("%s: %w", list[i].path, err)
		}
	}
	return nil
}

// licenceFile matches the names of files with a licence of code.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([.-].*)?$`)

// otherFile matches those that look so and are about documentation, or are code.
var otherFile = regexp.MustCompile(`(?i)\.(docs|go)$`)

// minCoverage is the share of a file, in percent, that must be text of known licences.
const minCoverage = 75

// licencesIn returns the licences in the top folder of a module. A file that is mostly
// other text is an error.
func licencesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) || otherFile.MatchString(e.Name()) {
			continue
		}
		ids, err := licencesOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		found = append(found, ids...)
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) == 0 {
		return nil, fmt.Errorf("no licence in %s", dir)
	}
	return found, nil
}

// licencesOf returns the licences in a file. One that is mostly other text is an error.
func licencesOf(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := licensecheck.Scan(text)
	if c.Percent < minCoverage {
		return nil, fmt.Errorf("%s: only %.0f %% of it is text of licences that are known", filepath.Base(path), c.Percent)
	}
	var found []string
	for _, m := range c.Match {
		found = append(found, m.ID)
	}
	return found, nil
}

// encodeSPDX makes the SPDX 2.3 document of a program.
func encodeSPDX(name, path, version string, modules []module) ([]byte, error) {
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(program))
	type object = map[string]any
	const root = "SPDXRef-program"
	packages := []object{{
		"SPDXID": root, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "licenseConcluded": "Apache-2.0",
		"licenseDeclared": "Apache-2.0",
		"copyrightText":   "NOASSERTION", "filesAnalyzed": false, "checksums": []object{{"algorithm": "SHA256", "checksumValue": sum}},
	}}
	relations := []object{{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": root}}
	for i, m := range modules {
		id := fmt.Sprintf("SPDXRef-module-%d", i+1)
		licence := strings.Join(m.licences, " AND ")
		packages = append(packages, object{
			"SPDXID": id, "name": m.path, "versionInfo": m.version, "downloadLocation": m.source(), "licenseConcluded": licence,
			"licenseDeclared": licence,
			"copyrightText":   "NOASSERTION", "filesAnalyzed": false, "comment": m.comment(),
			"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": m.purl()}},
		})
		relations = append(relations, object{"spdxElementId": root, "relationshipType": "DEPENDS_ON", "relatedSpdxElement": id})
	}
	return json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name + " " + version,
		"documentNamespace": "https://thaw.dev/spdx/" + name + "/" + sum,
		// A time of the build would make each build another document.
		"creationInfo": object{"created": "1970-01-01T00:00:00Z", "creators": []string{"Tool: thaw-release"}},
		"packages":     packages, "relationships": relations,
	}, "", " ")
}
