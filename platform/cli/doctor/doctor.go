// Package doctor implements the verb thaw doctor: it checks this machine (memory, GPUs, installed
// engines, data folder) and its server, and prints findings with hints; it repairs nothing.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// Options is what the checks use of the program.
type Options struct {
	*kit.Terminal
	Version  string
	Getenv   func(string) string
	GPUs     func() (gpus []functions.GPU, driver string, err error) // nil: not built in
	Embedded func(engine string) bool                                // whether the engine is in this program

	// DataFolders are where the data of a server of this machine may be, the likeliest first.
	DataFolders func() ([]string, error)
	// Client returns a client of the server, and Explain gives an error of it a hint.
	Client   func() (*api.Client, error)
	WithHint func(*api.Client, error) error
	// ServerNamed reports whether the user named a server; else DefaultServer is meant.
	ServerNamed   func() bool
	DefaultServer string
	IsLocal       func(server string) bool
	QueryTimeout  time.Duration
}

// doctor is one run of the verb.
type doctor struct{ Options }

type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warn, fail
	What   string `json:"what"`
	Hint   string `json:"hint,omitempty"`
}

const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
)

func New(o Options) *kit.Command {
	c := doctor{o}
	var folder string
	cmd := &kit.Command{
		Use: "doctor", Short: "Check what models need on this machine", GroupID: "run", Args: kit.ExactArgs(),
		Long: `Look at what models need on this machine: each engine with its version and what
is known of it, bytecode, GPUs, memory, disk, ports, the data folder, and the
server if one runs.

An engine that is not there is no fault, unless a model of the catalogue needs
it: of the folder given with --functions, deployed to the data folder, or served
by a server on this machine. Exit code 1 if any check failed; a warning is none.

With --to knative it looks at a cluster instead: Knative Serving, the settings of
it that models need and that have to be enabled, whether thaw's parts run and
answer, the nodes' GPUs, and the namespace; with -f also what those models need.`,
		Example: `  thaw doctor
  thaw doctor --to knative
  thaw doctor --to knative -f model.yaml
  thaw doctor --functions ./functions
  thaw doctor --data /var/lib/thaw -o json`,
		RunE: func(cmd *kit.Command, _ []string) error {
			findings := c.examine(cmd.Context(), folder)
			k := kit.Kind[finding]{Word: "Finding", Columns: []kit.Column[finding]{
				kit.Col("", func(f finding) string { return f.Status }),
				kit.Col("CHECK", func(f finding) string { return f.Check }),
				kit.Col("WHAT", func(f finding) string { return f.What }),
			}, Name: func(f finding) string { return f.Check }}
			if err := kit.PrintList(c.Terminal, k, findings); err != nil {
				return err
			}
			failed := 0
			for _, f := range findings {
				if f.Status == statusFail {
					failed++
				}
				if f.Hint != "" && (c.Output == "table" || c.Output == "wide") {
					c.Remark("hint: %s: %s", f.Check, f.Hint)
				}
			}
			if failed > 0 {
				return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("%d of %d checks failed", failed, len(findings))}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&folder, "functions", "", "folder of model files whose engines must be here [THAW_FUNCTIONS]")
	return cmd
}

// Sizes under which something is worth a word.
const (
	minMemory    = 1 << 30
	minDisk      = 10 << 30
	minOpenFiles = 4096
	maxSkew      = 5 * time.Second
)

func (d doctor) examine(ctx context.Context, folder string) []finding {
	var list []finding
	add := func(check, status, hint, format string, args ...any) {
		list = append(list, finding{check, status, fmt.Sprintf(format, args...), hint})
	}
	add("program", statusOK, "", "thaw %s, %s, %s/%s, %d CPUs", d.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())

	m, err := hostinfo.ReadMemory()
	total, free := functions.Bytes(m.Total), functions.Bytes(m.Available)
	if err != nil {
		add("memory", statusWarn, "", "not known: %v", err)
	} else if free > 0 && free < minMemory {
		add("memory", statusWarn, "engines need more", "%s of %s free", free.Human(), total.Human())
	} else if free == 0 {
		add("memory", statusOK, "", "%s", total.Human())
	} else {
		add("memory", statusOK, "", "%s of %s free", free.Human(), total.Human())
	}

	if n := hostinfo.MaxFiles(); n == 0 {
		add("open files", statusWarn, "", "not known")
	} else if n < minOpenFiles {
		add("open files", statusWarn, "ulimit -n 65536", "at most %d: too few for many held requests", n)
	} else {
		add("open files", statusOK, "", "at most %d", n)
	}

	examineConfinement(add)
	d.examineGPUs(add)
	w := d.wantedModels(ctx, folder, add)
	d.examineEngines(ctx, w, add)
	d.examineStart(w, add)
	d.examineData(add)
	d.examineServer(ctx, add)
	return list
}

type adder func(check, status, hint, format string, args ...any)

// examineConfinement reports what confines engines on this machine.
func examineConfinement(add adder) {
	switch why := confine.Unavailable(); {
	case why != "":
		add("confinement", statusWarn, "run checkpoints that you trust only, or give thaw a user of its own",
			"engines run with the rights of thaw: %s", why)
	case confine.OwnUsers():
		add("confinement", statusOK, "", "engines reach their own files only (Landlock, no new privileges), each model under a user of its own")
	default:
		add("confinement", statusOK, "", "engines reach their own files only (Landlock, no new privileges), under the user of thaw")
	}
}

func (d doctor) examineGPUs(add adder) {
	if d.GPUs == nil {
		add("GPUs", statusOK, "", "this build reads no GPU facts")
		return
	}
	gpus, driver, err := d.GPUs()
	switch {
	case err != nil:
		add("GPUs", statusWarn, "nvidia-smi has to work where thaw runs", "%v", err)
	case len(gpus) == 0:
		add("GPUs", statusOK, "", "%s", cmp.Or(driver,
			"the driver shows no GPU here; a container gets them by --gpus all, or the runtime nvidia"))
	}
	for _, g := range gpus {
		status := statusOK
		if g.Health != "ok" && g.Health != "" {
			status = statusWarn
		}
		if g.Holders != "" {
			add(fmt.Sprintf("GPU %d memory", g.Index), statusWarn, "end them, or leave the GPU out (--gpus); models get the rest", "%s", g.Holders)
		}
		add(fmt.Sprintf("GPU %d", g.Index), status, "", "%s, %s of %s free, %s", g.Name, g.MemoryFree.Human(), g.MemoryTotal.Human(), g.Health)
	}
}

func (d doctor) examineData(add adder) {
	dirs, err := d.DataFolders()
	if err != nil {
		add("data folder", statusFail, "give --data DIR", "%v", err)
		return
	}
	dir := dirs[len(dirs)-1]
	for _, place := range slices.Backward(dirs) {
		if _, err := os.Stat(filepath.Join(place, "admin-token")); err == nil {
			dir = place
		}
	}
	if folder := systemFolder(dir); folder != "" && confine.Unavailable() == "" {
		add("data folder", statusWarn, "give a --data DIR outside of the system's folders, such as /var/lib/thaw",
			"%s: every engine may read what is below %s, so also tokens, keys and other models there", dir, folder)
	}
	// Its nearest parent that is there, while it is not.
	at := dir
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			add("data folder", statusFail, "", "%s is no folder", at)
			return
		}
		if err == nil || !errors.Is(err, os.ErrNotExist) || filepath.Dir(at) == at {
			break
		}
		at = filepath.Dir(at)
	}
	probe, err := os.CreateTemp(at, ".thaw-doctor-*")
	if err != nil {
		add("data folder", statusFail, "give another --data DIR, or the right to write there", "%s: %v", at, kit.RootCause(err))
		return
	}
	name := probe.Name()
	if err := errors.Join(probe.Close(), os.Remove(name)); err != nil {
		add("data folder", statusFail, "", "%s: %v", at, kit.RootCause(err))
		return
	}
	if at != dir {
		add("data folder", statusOK, "", "%s can be made", dir)
	} else {
		add("data folder", statusOK, "", "%s can be written", dir)
		if info, err := os.Stat(filepath.Join(dir, "admin-token")); err == nil && info.Mode().Perm()&0o077 != 0 {
			add("admin token", statusFail, "chmod 600 "+filepath.Join(dir, "admin-token"), "others can read it")
		}
	}
	free, err := hostinfo.FreeDisk(at)
	if text := functions.Bytes(free).Human(); err != nil {
		add("disk", statusWarn, "", "not known: %v", err)
	} else if free < minDisk {
		add("disk", statusWarn, "the store keeps checkpoints there", "%s free at %s", text, at)
	} else {
		add("disk", statusOK, "", "%s free at %s", text, at)
	}
}

// systemFolder returns the folder open to every confined engine that dir lies in, by its
// links too; "" if there is none.
func systemFolder(dir string) string {
	rest := ""
	for at := dir; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			dir = filepath.Join(real, rest)
			break
		}
		if filepath.Dir(at) == at {
			break
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
	for _, folder := range confine.System() {
		real := folder
		if resolved, err := filepath.EvalSymlinks(folder); err == nil {
			real = resolved
		}
		if dir == real || strings.HasPrefix(dir, real+"/") {
			return folder
		}
	}
	return ""
}

func (d doctor) examineServer(ctx context.Context, add adder) {
	cl, err := d.Client()
	if err != nil {
		add("server", statusFail, "", "%v", err)
		return
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	began := d.Now()
	ready, err := cl.Ready(ctx)
	if err != nil {
		explained := d.WithHint(cl, err)
		// No server is not a failure, unless another program uses the port.
		if !d.ServerNamed() {
			if l, err := net.Listen("tcp", strings.TrimPrefix(d.DefaultServer, "http://")); err == nil {
				add("server", statusOK, "", "none runs; the port %s is free", strings.TrimPrefix(d.DefaultServer, "http://"))
				_ = l.Close()
				return
			}
			add("server", statusWarn, "thaw serve --addr 127.0.0.1:PORT takes another", "%s is taken, and not by thaw: %v", d.DefaultServer,
				explained)
			return
		}
		add("server", statusFail, "", "%v", explained)
		return
	}
	if ready.Ready {
		add("server", statusOK, "", "%s takes requests", cl.Server())
	} else {
		add("server", statusWarn, "", "%s takes no requests: %s", cl.Server(), strings.Join(ready.Reasons, ", "))
	}
	if skew, err := cl.Skew(ctx, d.Now); err == nil {
		if skew > maxSkew || skew < -maxSkew {
			add("clock", statusWarn, "let both machines keep time (ntp, chrony)", "the server's is %s off", skew)
		} else {
			add("clock", statusOK, "", "agrees with the server's")
		}
	} else if began.Year() < 2026 {
		add("clock", statusFail, "set it", "it says %s", began.Format(time.DateOnly))
	}
	nodes, err := api.GetItems[api.Node](ctx, cl, "/api/v1/nodes")
	if err != nil {
		e := d.WithHint(cl, err)
		var hint string
		if ours, ok := errors.AsType[*kit.Error](e); ok {
			hint = ours.Hint
		}
		add("key", statusWarn, hint, "the server does not let us read: %v", e)
		return
	}
	for _, n := range nodes {
		if n.Lost {
			add("node "+n.ID, statusWarn, "", "lost; last seen %s ago", d.Since(n.Seen))
		} else {
			add("node "+n.ID, statusOK, "", "%s, %s, %s", n.State, kit.CountOf(len(n.GPUs), "GPU"), kit.CountOf(n.Replicas, "replica"))
		}
	}
}
