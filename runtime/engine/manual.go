package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader/durable"
)

// Manual has the flags of the installed engines, from their --help. Reading it costs a
// Python engine seconds of imports, so it is read once per environment, in the
// background at the lowest priority, and stored on disk. Until then args are not
// validated; the engine itself rejects wrong ones.
type Manual struct {
	dir string
	o   ManualOptions

	mu       sync.Mutex
	known    map[string]*flagList // by environmentKey
	tried    map[string]bool      // requested by this process
	requests chan helpRequest
}

// ManualOptions are the options of a Manual.
type ManualOptions struct {
	// Environ is the environment that engines inherit; nil is os.Environ.
	Environ func() []string
	// Quiet reports that no start would be disturbed; nil is always true.
	Quiet func() bool
	Log   *slog.Logger
}

// flagList is the flags of one environment.
type flagList struct {
	Program string   `json:"program"`
	Flags   []string `json:"flags"`
}

type helpRequest struct {
	engine  functions.Engine
	program string
}

const (
	// manualAfter is the delay before --help is run, for the start that needs it,
	// repeated until it is quiet.
	manualAfter = 10 * time.Second
	// manualWait bounds one run of --help.
	manualWait = 5 * time.Minute
	// manualFlags is the least number of flags of a complete list.
	manualFlags = 10
)

// NewManual makes a Manual that stores lists in a folder, made when needed.
func NewManual(dir string, o ManualOptions) *Manual {
	if o.Environ == nil {
		o.Environ = os.Environ
	}
	if o.Quiet == nil {
		o.Quiet = func() bool { return true }
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Manual{dir: dir, o: o, known: map[string]*flagList{}, tried: map[string]bool{}, requests: make(chan helpRequest, 8)}
}

// Check returns an error that names the first flag of args that the program does not
// have, and the nearest one that it has. It reads at most two files.
func (m *Manual) Check(e functions.Engine, program string, args []string) error {
	p := m.flags(e, program)
	if p == nil {
		return nil
	}
	for _, a := range args {
		if a == "--" {
			return nil
		}
		name, ok := flagName(a)
		if !ok || p.takes(name) {
			continue
		}
		if nearest := nearestFlag(name, p.Flags); nearest != "" {
			return fmt.Errorf("args: %s is not a flag of %s; did you mean %s?", name, e, nearest)
		}
		return fmt.Errorf("args: %s is not a flag of %s (%s lists them)", name, e, p.Program+" serve --help=all")
	}
	return nil
}

// lacksFlag reports whether the program is known not to have a flag.
func (m *Manual) lacksFlag(e functions.Engine, program, flag string) bool {
	if m == nil {
		return false
	}
	p := m.flags(e, program)
	return p != nil && !slices.Contains(p.Flags, flag)
}

// takes reports whether argparse accepts the flag, which may be abbreviated.
func (l *flagList) takes(name string) bool {
	return slices.ContainsFunc(l.Flags, func(f string) bool { return strings.HasPrefix(f, name) })
}

// flagName is the flag of an argument as --help spells it: without its value and
// without a path into a JSON argument (--compilation-config.mode=0).
func flagName(arg string) (string, bool) {
	if len(arg) < 3 || !strings.HasPrefix(arg, "--") {
		return "", false
	}
	name, _, _ := strings.Cut(arg, "=")
	name, _, _ = strings.Cut(name, ".")
	return strings.ReplaceAll(name, "_", "-"), !strings.ContainsAny(name, " \t\n{\"")
}

// flags is the list of a program; nil if it is unknown, and then it is requested.
func (m *Manual) flags(e functions.Engine, program string) *flagList {
	row, _ := engineRow(e)
	if row.help == nil {
		return nil
	}
	key := environmentKey(program)
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.known[key]; ok {
		return p
	}
	if b, err := os.ReadFile(m.path(key)); err == nil {
		var p flagList
		if json.Unmarshal(b, &p) == nil && len(p.Flags) >= manualFlags {
			m.known[key] = &p
			return &p
		}
	}
	if !m.tried[key] {
		select {
		case m.requests <- helpRequest{e, program}:
			m.tried[key] = true
		default:
		}
	}
	return nil
}

func (m *Manual) path(key string) string { return filepath.Join(m.dir, "flags-"+key+".json") }

// environmentKey hashes what an engine's flags depend on: the program and the Python
// packages installed beside it.
func environmentKey(program string) string {
	h := sha256.New()
	note := func(path string) {
		if st, err := os.Stat(path); err == nil {
			fmt.Fprintln(h, path, st.Size(), st.ModTime().UnixNano())
		}
	}
	note(program)
	if real, err := filepath.EvalSymlinks(program); err == nil {
		note(real)
		sitePackages, _ := filepath.Glob(filepath.Join(filepath.Dir(real), "..", "lib", "python3*", "site-packages"))
		for _, s := range sitePackages {
			note(s)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Run reads the flags that Check did not have, one program at a time, until ctx ends.
func (m *Manual) Run(ctx context.Context) error {
	for {
		select {
		case a := <-m.requests:
			for quiet := false; !quiet; quiet = m.o.Quiet() {
				if !backoff.Sleep(ctx, manualAfter) {
					return nil
				}
			}
			if err := m.Learn(ctx, a.engine, a.program); err != nil && ctx.Err() == nil {
				m.o.Log.Info("the flags of an engine are unknown, so args are not validated", "program", a.program, "error", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Learn runs the --help of a program now, which takes seconds.
func (m *Manual) Learn(ctx context.Context, e functions.Engine, program string) error {
	row, _ := engineRow(e)
	if row.help == nil {
		return ErrUnsupported
	}
	ctx, cancel := context.WithTimeout(ctx, manualWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, row.help...)
	cmd.Env = lastWins(append(append(Environ(m.o.Environ()), row.env...), "CUDA_VISIBLE_DEVICES=", "COLUMNS=80"))
	cmd.SysProcAttr = childGroup()
	runtime.LockOSThread() // the child's death signal is tied to this thread
	defer runtime.UnlockOSThread()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return err
	}
	syscall.Setpriority(syscall.PRIO_PGRP, cmd.Process.Pid, 19) // behind serving engines
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s %s: %w", program, strings.Join(row.help, " "), err)
	}
	return m.Put(e, program, out.Bytes())
}

// Put stores the flags from the help text of a program.
func (m *Manual) Put(e functions.Engine, program string, help []byte) error {
	p := flagList{Program: program, Flags: parseHelp(string(help))}
	if len(p.Flags) < manualFlags {
		return fmt.Errorf("%s: its help lists only %d flags", program, len(p.Flags))
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	key := environmentKey(program)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[key], m.tried[key] = &p, true
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	return durable.WriteFile(m.path(key), b, 0o600)
}

// parseHelp returns the flags in argparse's help: lines indented by two, alternatives
// separated by commas, each with its metavariable.
func parseHelp(help string) (flags []string) {
	for line := range strings.SplitSeq(help, "\n") {
		rest, ok := strings.CutPrefix(line, "  -")
		if !ok {
			continue
		}
		rest = "-" + rest
		if i := strings.Index(rest, "  "); i > 0 { // the description begins
			rest = rest[:i]
		}
		for alt := range strings.SplitSeq(rest, ", ") {
			name, _, _ := strings.Cut(strings.TrimSpace(alt), " ")
			name, _, _ = strings.Cut(name, "=")
			if strings.HasPrefix(name, "--") && len(name) > 2 {
				flags = append(flags, name)
			}
		}
	}
	slices.Sort(flags)
	return slices.Compact(flags)
}

// nearestFlag is the flag with the most similar name; "" if none is similar.
func nearestFlag(name string, flags []string) (best string) {
	minimum := 2 + len(name)/4
	for _, f := range flags {
		if d := editDistance(name, f); d < minimum {
			best, minimum = f, d
		}
	}
	if best != "" {
		return best
	}
	// Words left out or added: --memory-utilization for --gpu-memory-utilization.
	for _, f := range flags {
		if n := strings.TrimPrefix(name, "--"); len(n) >= 6 && strings.Contains(f, n) && (best == "" || len(f) < len(best)) {
			best = f
		}
	}
	return best
}

// editDistance is the Levenshtein distance.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0] // the diagonal
		row[0] = i + 1
		for j := range len(b) {
			cost := above
			if a[i] != b[j] {
				cost++
			}
			above = row[j+1]
			row[j+1] = min(cost, above+1, row[j]+1)
		}
	}
	return row[len(b)]
}
