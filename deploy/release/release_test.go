package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLicences: every module that the programs link has a licence, and only allowed ones.
func TestLicences(t *testing.T) {
	for name, pkg := range packages {
		modules, err := dependencies("../../" + strings.TrimPrefix(pkg, "./"))
		if err != nil {
			t.Fatal(name, err)
		}
		if len(modules) < 20 {
			t.Errorf("%s has %d modules: the search is broken", name, len(modules))
		}
		for _, m := range modules {
			for _, l := range m.licences {
				if !slices.Contains(allowed, l) {
					t.Errorf("%s links %s %s, whose licence %s is not allowed", name, m.path, m.version, l)
				}
			}
		}
	}
}

// TestEmbeddedLibraries: the console's libraries are listed with version, licence and purl;
// one without its licence, or a line without a version, is an error.
func TestEmbeddedLibraries(t *testing.T) {
	list, err := embeddedLibraries("../../" + npmFolder)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"preact MIT", "htm Apache-2.0"} {
		m := list[i]
		if m.path+" "+strings.Join(m.licences, " ") != want || m.purl() != "pkg:npm/"+m.path+"@"+m.version ||
			!slices.Contains(allowed, m.licences[0]) {
			t.Errorf("%+v, want %s", m, want)
		}
	}
	// Every file of code in the folder belongs to a library that VERSIONS.txt names.
	versions, err := os.ReadFile("../../" + npmFolder + "/VERSIONS.txt")
	if err != nil {
		t.Fatal(err)
	}
	code, _ := filepath.Glob("../../" + npmFolder + "/*.mjs")
	for _, c := range code {
		if !strings.Contains(string(versions), filepath.Base(c)) {
			t.Errorf("%s is in no line of VERSIONS.txt", c)
		}
	}
	for _, versions := range []string{"preact 11.2.0, MIT: preact.mjs\n", "preact\n", "preact, MIT\n"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "VERSIONS.txt"), []byte(versions), 0o644); err != nil {
			t.Fatal(err)
		}
		if list, err := embeddedLibraries(dir); err == nil {
			t.Errorf("%q: %+v", versions, list)
		}
	}
}

// TestLicencesIn: a licence is found by its text; a module without one, or with one that
// is not known, is an error.
func TestLicencesIn(t *testing.T) {
	apache, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"LICENSE", string(apache), "Apache-2.0"},
		{"COPYING.md", string(apache), "Apache-2.0"},
		{"README", string(apache), ""},
		{"LICENSE", string(apache) + strings.Repeat("Those who run it for money pay the author a part of it, each year anew.\n", 100), ""},
		{"LICENSE", "All rights reserved. Nothing may be copied without a written permission of the author.", ""},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.name), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := licencesIn(dir)
		if strings.Join(got, " ") != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s %.20q: %v, %v", c.name, c.text, got, err)
		}
	}
}

// TestChart: the chart of a release names the image by its digest, and the version; the
// one in the tree has a tag.
func TestChart(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	out := filepath.Join(t.TempDir(), "chart")
	if err := writeChart("../helm/thaw", out, "v1.2.3", "example.com/a/thaw@"+digest); err != nil {
		t.Fatal(err)
	}
	values, _ := os.ReadFile(filepath.Join(out, "values.yaml"))
	chart, _ := os.ReadFile(filepath.Join(out, "Chart.yaml"))
	for _, want := range []string{"repository: example.com/a/thaw\n", `digest: "` + digest + `" `} {
		if !strings.Contains(string(values), want) {
			t.Errorf("values.yaml lacks %q", want)
		}
	}
	if !strings.Contains(string(chart), "appVersion: \"v1.2.3\"\n") {
		t.Errorf("Chart.yaml: %s", chart)
	}
	for _, bad := range []string{"thaw", "thaw:v1", "thaw@sha256:12", "@" + digest} {
		if err := writeChart("../helm/thaw", filepath.Join(t.TempDir(), "chart"), "v1", bad); err == nil {
			t.Errorf("image %q is taken", bad)
		}
	}
	tree, _ := os.ReadFile("../helm/thaw/values.yaml")
	if !strings.Contains(string(tree), `digest: "" `) {
		t.Error("the chart in the tree has a digest")
	}
}

// TestSPDX: the document lists each module with version, licence and purl, and is the same
// each time.
func TestSPDX(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thaw")
	if err := os.WriteFile(path, []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	modules := []module{{path: "example.com/a", version: "v1.0.0", sum: "h1:x", licences: []string{"MIT"}}, {path: "example.com/b", version: "v2.0.0", sum: "h1:y", licences: []string{"Apache-2.0", "MIT"}}}
	b, err := encodeSPDX("thaw-linux-amd64", path, "v1", modules)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := encodeSPDX("thaw-linux-amd64", path, "v1", modules)
	if string(again) != string(b) {
		t.Error("the same program has two documents")
	}
	var doc struct {
		SpdxVersion string
		Packages    []struct {
			SPDXID, Name, VersionInfo, LicenseDeclared string
			ExternalRefs                               []struct{ ReferenceLocator string }
		}
		Relationships []struct{ SpdxElementId, RelationshipType, RelatedSpdxElement string }
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Packages) != 3 || len(doc.Relationships) != 3 || doc.SpdxVersion != "SPDX-2.3" {
		t.Fatalf("%s", b)
	}
	if p := doc.Packages[2]; p.Name != "example.com/b" || p.LicenseDeclared != "Apache-2.0 AND MIT" ||
		p.ExternalRefs[0].ReferenceLocator != "pkg:golang/example.com/b@v2.0.0" {
		t.Errorf("%+v", p)
	}
}
