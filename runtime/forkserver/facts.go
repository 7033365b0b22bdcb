package forkserver

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// Facts are a parent's report on itself.
type Facts struct {
	Protocol int     `json:"protocol"`
	PID      int     `json:"pid"`
	Row      string  `json:"row"`
	Program  string  `json:"program"`
	Python   string  `json:"python"`  // "3.11.7"
	Version  string  `json:"version"` // of the engine, "0.32.0"
	Imports  float64 `json:"import_seconds"`
	Modules  int     `json:"modules"`
	// Missing are modules of the import list that this version lacks.
	Missing []string `json:"missing"`
	Threads int      `json:"threads"`   // 1, or nothing is forked
	Touched []string `json:"touched"`   // devices of accelerators that are open: none, or nothing is forked
	Bytes   int64    `json:"own_bytes"` // of memory, its share of what it shares (PSS)
	Forks   int      `json:"forks"`
	// Reads are the variables that imports asked for, Env what it was started with.
	Reads []string          `json:"reads"`
	Env   map[string]string `json:"env"`
	// Files change when the installation does; see Print.
	Files []string `json:"files"`
}

// Protocol that parents speak.
const Protocol = 1

const maxAnswer = 4 << 20

// AskFacts asks a parent for its facts on the unix socket at the path. It waits until the
// parent answers or ctx ends.
func AskFacts(ctx context.Context, socket string) (Facts, error) {
	conn, err := jsonsocket.Dial(ctx, socket, maxAnswer)
	if err != nil {
		return Facts{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	// A parent that refuses may have hung up already, after an error line.
	if err := conn.Send(map[string]string{"op": "facts"}); err != nil && !errors.Is(err, syscall.EPIPE) {
		return Facts{}, err
	}
	var a factsAnswer
	switch err := conn.Receive(&a); {
	case errors.Is(err, jsonsocket.ErrLine):
		return Facts{}, fmt.Errorf("the parent's answer: %w", err)
	case ctx.Err() != nil:
		return Facts{}, context.Cause(ctx)
	case err != nil:
		return Facts{}, fmt.Errorf("the parent does not answer: %w", err)
	}
	return a.check()
}

type factsAnswer struct {
	Facts *Facts `json:"facts"`
	Error string `json:"error"`
}

func (a factsAnswer) check() (Facts, error) {
	switch {
	case a.Error != "":
		return Facts{}, fmt.Errorf("the parent reports: %.200s", a.Error)
	case a.Facts == nil || a.Facts.PID <= 1:
		return Facts{}, errors.New("the parent's answer has no facts")
	case a.Facts.Protocol != Protocol:
		return Facts{}, fmt.Errorf("the parent speaks protocol %d, this is %d", a.Facts.Protocol, Protocol)
	}
	return *a.Facts, nil
}

// Unusable is why a parent forks nothing; "" if it does.
func (f Facts) Unusable() string {
	switch {
	case f.Threads != 1:
		return fmt.Sprintf("the warm interpreter has %d threads", f.Threads)
	case len(f.Touched) > 0:
		return "the warm interpreter holds " + f.Touched[0] + " open"
	}
	return ""
}
