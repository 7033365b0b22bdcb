package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// packages are the programs by the packages of their mains.
var packages = map[string]string{"thaw": "./platform/thaw", "thaw-knative": "./platform/thaw-knative"}

// program is one program of a release.
type program struct {
	name, arch string
	cgo        bool // linked with the C library, for the GPUs' driver
}

func (p program) file() string {
	name := p.name + "-linux-" + p.arch
	if p.cgo {
		name += "-cgo"
	}
	return name
}

func main() {
	version := flag.String("version", "", "`VERSION` of the release")
	out := flag.String("out", "", "`FOLDER` to make")
	image := flag.String("image", "", "image of the release, `NAME@sha256:…`, for the chart")
	arch := flag.String("arch", runtime.GOARCH, "comma-separated `ARCHITECTURES`")
	flag.Parse()
	if *version == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := release(*out, *version, *image, strings.Split(*arch, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release fills the folder out, which it empties first.
func release(out, version, image string, arches []string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	libraries, err := embeddedLibraries(npmFolder)
	if err != nil {
		return err
	}
	var programs []program
	for _, a := range arches {
		programs = append(programs, program{"thaw", a, false}, program{"thaw-knative", a, false})
		if a == runtime.GOARCH && runtime.GOOS == "linux" && hasCompiler() {
			programs = append(programs, program{"thaw", a, true})
		}
	}
	for _, p := range programs {
		path := filepath.Join(out, p.file())
		fmt.Println("build", p.file())
		if err := build(p, path, version); err != nil {
			return err
		}
		modules, err := linkedModules(path)
		if err != nil {
			return err
		}
		if p.name == "thaw" {
			modules = append(modules, libraries...)
		}
		b, err := encodeSPDX(p.file(), path, version, modules)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path+".spdx.json", b, 0o644); err != nil {
			return err
		}
	}
	if err := writeChart("deploy/helm/thaw", filepath.Join(out, "chart"), version, image); err != nil {
		return err
	}
	return writeSums(out)
}

// hasCompiler reports whether programs can be linked with the C library here.
func hasCompiler() bool {
	_, err := exec.LookPath("gcc")
	return err == nil
}

func build(p program, path, version string) error {
	cgo := "0"
	if p.cgo {
		cgo = "1"
	}
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X github.com/thaw-dev/thaw/platform/cli.Version="+version, "-o", path, packages[p.name])
	c.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOARCH="+p.arch)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", p.file(), err)
	}
	return nil
}

// imageName is the form of an image with its digest.
var imageName = regexp.MustCompile(`^([^@\s]+)@(sha256:[0-9a-f]{64})$`)

// writeChart copies the chart, with the version as its appVersion and, unless image is
// empty, with the image by its digest.
func writeChart(from, to, version, image string) error {
	repository, digest := "", ""
	if image != "" {
		m := imageName.FindStringSubmatch(image)
		if m == nil {
			return fmt.Errorf("-image %q has no digest: want NAME@sha256:… with 64 hexadecimal digits, as docker push prints it", image)
		}
		repository, digest = m[1], m[2]
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var old, values []string
		switch {
		case rel == "Chart.yaml":
			old, values = []string{"appVersion: dev\n"}, []string{fmt.Sprintf("appVersion: %q\n", version)}
		case rel == "values.yaml" && image != "":
			old = []string{"  repository: thaw-dev/thaw\n", "  digest: \"\" "}
			values = []string{"  repository: " + repository + "\n", fmt.Sprintf("  digest: %q ", digest)}
		}
		for i := range old {
			if bytes.Count(b, []byte(old[i])) != 1 {
				return fmt.Errorf("%s: the line %q is not there once", path, old[i])
			}
			b = bytes.Replace(b, []byte(old[i]), []byte(values[i]), 1)
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
}

// writeSums writes SHA256SUMS in the form of sha256sum.
func writeSums(out string) error {
	var lines []string
	err := filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(out, path)
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(b), filepath.ToSlash(rel)))
		return err
	})
	if err == nil && len(lines) == 0 {
		err = errors.New("there is nothing to sum")
	}
	if err != nil {
		return err
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
