package report

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
)

// Provenance records how a result was made: time, command, commit and kind of machine.
// It names no host.
type Provenance struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	At         time.Time `json:"at"`
	Command    string    `json:"command"`
	Commit     string    `json:"commit"`
	Machine    Machine   `json:"machine"`
}

// Machine describes a kind of machine.
type Machine struct {
	System string `json:"system"`
	Kernel string `json:"kernel,omitempty"`
	CPU    string `json:"cpu,omitempty"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory,omitempty"`
}

// String returns the machine in one line.
func (m Machine) String() string {
	parts := []string{fmt.Sprintf("%d cores", m.Cores)}
	for _, s := range []string{m.CPU, m.Memory, m.System, m.Kernel} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ", ")
}

// NewProvenance returns the Provenance of a document of this kind for a command with args.
func NewProvenance(kind string, args []string, now time.Time) Provenance {
	return Provenance{
		APIVersion: functions.APIVersion, Kind: kind, At: now.UTC().Truncate(time.Second),
		Command: "thaw bench " + strings.Join(args, " "), Commit: commit(), Machine: ThisMachine(),
	}
}

// commit returns the commit of this program from its build information, or else that of
// the working directory.
func commit() string {
	rev, dirty := "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				rev = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "-dirty"
			}
		}
	}
	if rev != "" {
		return rev + dirty
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil || !bytes.HasPrefix(mod, []byte("module github.com/thaw-dev/thaw\n")) {
		return "unknown"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return string(bytes.TrimSpace(out))
}

// ThisMachine describes this machine; unknown fields are empty.
func ThisMachine() Machine {
	m := Machine{System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = string(bytes.TrimSpace(b))
	}
	m.CPU = field("/proc/cpuinfo", "model name")
	if kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.Memory = functions.Bytes(kb << 10).Human()
	}
	return m
}

// field returns the value of the first "name : value" line of a file.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// WriteJSON writes v to dir/name atomically.
func WriteJSON(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(dir, name, append(b, '\n'))
}

// WriteFile writes a file of the report atomically and creates dir.
func WriteFile(dir, name string, b []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, name), b, 0o644)
}
