package controlstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/functions"
)

// What the shim in a pod and the loader of its node say to each other goes over a
// Unix socket in the node's store, one connection per shim: lines of JSON, both
// ways, each side whenever it has news. A line has one part; parts that are not
// known are passed over, so that either side may be the newer.
//
//	shim    {"hello":{"pod_ip":"10.0.0.7","port":8080,"version":"v1"}}
//	loader  {"welcome":{"node":"a","uid":"…","store":"/var/lib/thaw"}}
//	shim    {"stage":{"id":1,"source":"az://acct/models/llama","files":["*.txt"],"digest":"sha256:…"}}
//	loader  {"staging":{"id":1,"done":1048576,"total":2097152,"state":"fetching"}}
//	loader  {"staged":{"id":1,"path":"/var/lib/thaw/store/checkpoints/…/files","digest":"sha256:…","bytes":2097152,"files":["config.json",…]}}
//	        {"failed":{"id":1,"kind":"source_not_found","message":"…","fix":"…"}}
//	shim    {"status":{…}}      functions.ReplicaStatus, whenever it changes
//	loader  {"stop":{"seconds":30,"reason":"evicted for team-b/llama"}}
//
// Hello comes first and is answered by Welcome, or by an end of the connection.
// What is staged stays in the store while the connection lives. A shim whose
// loader went away serves on, dials again, and says everything anew: its hello,
// its stages (which then are here, or go on where they were), its status.
type (
	// FromPod is one line of a shim.
	FromPod struct {
		Hello  *Shim                    `json:"hello,omitempty"`
		Stage  *Stage                   `json:"stage,omitempty"`
		Status *functions.ReplicaStatus `json:"status,omitempty"`
	}

	// ToPod is one line of a loader.
	ToPod struct {
		Welcome *Welcome `json:"welcome,omitempty"`
		Staging *Staging `json:"staging,omitempty"`
		Staged  *Staged  `json:"staged,omitempty"`
		Failed  *Failed  `json:"failed,omitempty"`
		Stop    *Drain   `json:"stop,omitempty"`
	}

	// Shim is who dials. Which pod it is in the loader finds out by itself.
	Shim struct {
		PodIP   string `json:"pod_ip"`
		Port    int    `json:"port"` // where it answers
		Version string `json:"version"`
		Folders bool   `json:"folders,omitempty"` // it takes folders that come over the socket
	}

	// Stage asks for a checkpoint: a model's, or an adapter's.
	Stage struct {
		ID     int      `json:"id"` // the shim's own name for it, 1 and up; the same again is the same
		Source string   `json:"source"`
		Files  []string `json:"files,omitempty"`  // patterns of files that are staged beside those that always are
		Digest string   `json:"digest,omitempty"` // that it must have, sha256:…; empty for what is there
	}

	// Welcome answers Shim.
	Welcome struct {
		Node  string `json:"node"`
		UID   string `json:"uid"`   // of the pod, as Kubernetes has it
		Store string `json:"store"` // the folder on the node that all paths of Staged lie in
	}

	// Staging says how far a Stage is: at once, on each change of state, and ten
	// times a second at most between.
	Staging struct {
		ID    int    `json:"id"`
		Done  int64  `json:"done"`  // bytes that are here
		Total int64  `json:"total"` // bytes there are; 0 while that is not known
		State string `json:"state"` // as loader.State
		Note  string `json:"note,omitempty"`
	}

	// Staged says that all of a Stage is here and verified.
	Staged struct {
		ID     int      `json:"id"`
		Path   string   `json:"path"` // on the node, of the folder with the files under their own names
		Digest string   `json:"digest"`
		Bytes  int64    `json:"bytes"`
		Files  []string `json:"files"`
		Folder bool     `json:"folder,omitempty"` // it comes with this line, open
	}

	// Failed says that a Stage has come to nothing. It is over; the shim may ask
	// again.
	Failed struct {
		ID      int    `json:"id"`
		Kind    string `json:"kind"` // as source.Kind, or one of the Kind… below
		Message string `json:"message"`
		Fix     string `json:"fix,omitempty"` // what a person can do
	}

	// Drain tells a shim to take nothing new, and to end its engine when nothing
	// is in flight or after Seconds.
	Drain struct {
		Seconds float64 `json:"seconds"`
		Reason  string  `json:"reason"`
	}
)

// Kinds of Failed that are no source's.
const (
	KindRefused = "refused_by_loader" // this loader does not stage this, or not so much at once
	KindEnding  = "loader_ending"     // ask again once the loader is back
)

// Bounds of what a shim may say.
const (
	MaxLine    = 1 << 20 // bytes of one line, either way
	MaxSource  = 4096    // bytes of Stage.Source
	MaxFiles   = 64      // patterns of Stage.Files
	MaxPattern = 512     // bytes of each
)

// Check is why a Stage makes no sense; nil when it does. Whether the source can
// be staged is another question.
func (s *Stage) Check() error {
	switch {
	case s.ID < 1 || s.ID > 1<<30:
		return errors.New("id is a number from 1 up")
	case s.Source == "" || len(s.Source) > MaxSource || !isPlainText(s.Source):
		return fmt.Errorf("source is missing, longer than %d bytes, or no text", MaxSource)
	case len(s.Files) > MaxFiles:
		return fmt.Errorf("files are %d patterns at most", MaxFiles)
	case len(s.Digest) > 128 || !isPlainText(s.Digest):
		return errors.New("digest is no digest")
	}
	for _, f := range s.Files {
		if f == "" || len(f) > MaxPattern || !isPlainText(f) {
			return fmt.Errorf("files: a pattern is missing, longer than %d bytes, or no text", MaxPattern)
		}
		if _, err := path.Match(f, ""); err != nil {
			return fmt.Errorf("files: %.80q is no pattern", f)
		}
	}
	return nil
}

// isPlainText without what moves a terminal's cursor.
func isPlainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// WriteLine writes v as one line, in one Write.
func WriteLine(w io.Writer, v any) error {
	b, err := encodeLine(v)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

func encodeLine(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	if len(b) >= MaxLine {
		return nil, fmt.Errorf("link: a line of %d bytes: %w", len(b), ErrLine)
	}
	return append(b, '\n'), nil
}

// ErrLine: what came is no line of the protocol. The connection is of no use
// any more.
var ErrLine = errors.New("no line of JSON within the bounds")

// Lines reads lines of JSON. It holds one line in memory.
type Lines struct {
	s       *bufio.Scanner
	folders *folders // nil where none come
}

// NewLines reads from r.
func NewLines(r io.Reader) *Lines {
	s := bufio.NewScanner(r)
	s.Buffer(nil, MaxLine)
	return &Lines{s: s}
}

// Read reads the next line into v, which is a new FromPod or ToPod. Empty lines
// are passed over. io.EOF is the end, between lines; ErrLine what is no line.
func (l *Lines) Read(v any) error {
	for l.s.Scan() {
		line := bytes.TrimSpace(l.s.Bytes())
		if len(line) == 0 {
			continue
		}
		if line[0] != '{' {
			return fmt.Errorf("%w: it begins with %.20q", ErrLine, line)
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("%w: %w", ErrLine, err)
		}
		return nil
	}
	switch err := l.s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%w: it is longer than %d bytes", ErrLine, MaxLine)
	case err != nil:
		return err
	}
	return io.EOF
}
