package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/runtime/confine"
)

// Protocol is the version that a supervisor sends in its hello.
const Protocol = 1

const MaxLine = 4 << 20

const writeWait = 5 * time.Second

var (
	ErrRunning = errors.New("another supervisor runs in this folder")
	// ErrLost reports that the connection to the supervisor has ended.
	ErrLost = errors.New("the supervisor is gone")
	// ErrNoParent reports that the parent named by ForkSocket did not fork.
	ErrNoParent = errors.New("no warm interpreter")
)

type Process struct {
	// ID is unique among running processes of the supervisor: 1 to 128 letters,
	// digits, '.', '_' and '-'. An ended process's id may be used again.
	ID string `json:"id"`
	// Argv is the program, as a path, and its arguments.
	Argv []string `json:"argv"`
	// ForkSocket is the unix socket of a warm parent of the same program (package
	// runtime/forkserver) that forks the process; "" executes it. Either way it is
	// a child of the supervisor and leads its group.
	ForkSocket string `json:"via,omitempty"`
	// Env is the whole environment; nothing is inherited from the supervisor.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory; empty is the supervisor's folder.
	Dir string `json:"dir,omitempty"`
	// Log is where stdout and stderr go; empty is logs/ID.log in the supervisor's folder.
	Log string `json:"log,omitempty"`
	// Scratch is a folder that is made for the process (mode 0700, empty) and
	// removed with all that is in it when its group is gone; see Scratch.
	Scratch string `json:"scratch,omitempty"`
	// ScratchFiles are made in Scratch, by name, before the process starts (mode 0600).
	ScratchFiles map[string]string `json:"scratch_files,omitempty"`
	// Confine is what the process may do; nil leaves it the supervisor's rights. A
	// process that cannot be confined is not started.
	Confine *confine.Plan `json:"confine,omitempty"`
	// Meta are notes of the agent, returned by List unchanged.
	Meta json.RawMessage `json:"meta,omitempty"`
}

// Running is one process of the supervisor: alive while Exit is nil.
type Running struct {
	ID      string          `json:"id"`
	PID     int             `json:"pid"` // also its process group
	Log     string          `json:"log"`
	Started time.Time       `json:"started"`
	Meta    json.RawMessage `json:"meta,omitempty"`
	Exit    *Exit           `json:"exit,omitempty"`
}

// Exit is how a process ended. It is sent when its group is gone.
type Exit struct {
	ID     string         `json:"id"`
	PID    int            `json:"pid"`
	Code   int            `json:"code"`             // -1 when ended by a signal
	Signal syscall.Signal `json:"signal,omitempty"` // 0 when it exited by itself
	At     time.Time      `json:"at"`
	Tail   string         `json:"tail,omitempty"` // the last bytes of its log
	// OOM reports that the kernel killed a process for lack of memory at that time.
	OOM bool `json:"oom,omitempty"`
	// Lost reports that the supervisor is gone, so how the process ended is unknown.
	Lost bool `json:"lost,omitempty"`
}

// String is a text for people, such as "exit code 1" or "ended by signal 9 (killed)".
func (e Exit) String() string {
	switch {
	case e.Lost:
		return "its supervisor is gone"
	case e.OOM && e.Signal == syscall.SIGKILL:
		return "killed by the kernel: out of memory"
	case e.Signal != 0:
		return fmt.Sprintf("ended by signal %d (%s)", int(e.Signal), e.Signal)
	}
	if s := syscall.Signal(e.Code - 128); s > 0 && s <= syscall.SIGTERM { // as shells report their command's end
		return fmt.Sprintf("exit code %d (of a shell: signal %d, %s)", e.Code, int(s), s)
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

type hello struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Dir      string `json:"dir"`
}

type request struct {
	Seq     uint64   `json:"seq"`
	Op      string   `json:"op"`
	ID      string   `json:"id,omitempty"`
	Signal  int      `json:"signal,omitempty"`
	Grace   int64    `json:"grace,omitempty"` // milliseconds
	Process *Process `json:"process,omitempty"`
}

// reply is any line from the supervisor: hello, an exit, or the reply to seq.
type reply struct {
	Hello *hello    `json:"hello,omitempty"`
	Exit  *Exit     `json:"exit,omitempty"`
	Seq   uint64    `json:"seq,omitempty"`
	Error string    `json:"error,omitempty"`
	PID   int       `json:"pid,omitempty"`
	Items []Running `json:"items,omitempty"`
	// NoParent marks an error as ErrNoParent.
	NoParent bool `json:"no_parent,omitempty"`
}

func (p *Process) check() error {
	if !validID.MatchString(p.ID) {
		return fmt.Errorf("invalid process id %.140q: want 1 to 128 letters, digits, '.', '_' or '-'", p.ID)
	}
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return errors.New("nothing to run: argv is empty")
	}
	for _, list := range [][]string{p.Argv, p.Env, {p.Dir, p.Log, p.ForkSocket, p.Scratch}} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return errors.New("a NUL byte in arguments or environment")
			}
		}
	}
	return nil
}

var validID = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,127}$`)
