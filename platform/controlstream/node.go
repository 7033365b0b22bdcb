package controlstream

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/functions"
)

// The shim in a pod and the loader of its node exchange lines of JSON (package
// runtime/jsonsocket) over a Unix socket in the node's store, one connection per shim. Each side sends whenever it has news. A
// line has one part; unknown parts are skipped, so either side may be the newer version.
//
//	shim    {"hello":{"pod_ip":"10.0.0.7","port":8080,"version":"v1"}}
//	loader  {"welcome":{"node":"a","uid":"…","store":"/var/lib/thaw"}}
//	shim    {"stage":{"id":1,"source":"az://acct/models/llama","files":["*.txt"],"digest":"sha256:…"}}
//	loader  {"staging":{"id":1,"done":1048576,"total":2097152,"state":"fetching"}}
//
// loader
// {"staged":{"id":1,"path":"/var/lib/thaw/store/checkpoints/…/files","digest":"sha256:…","bytes":2097152,"files":["config.json",…]}}
//
//	        {"failed":{"id":1,"kind":"source_not_found","message":"…","fix":"…"}}
//	shim    {"verify":{"id":1,"digest":"sha256:…"}}    its engine failed as it does on a damaged file
//	loader  {"verified":{"id":1,"damaged":true,"error":"…"}}
//	shim    {"status":{…}}      functions.ReplicaStatus, whenever it changes
//	loader  {"stop":{"seconds":30,"reason":"evicted for team-b/llama"}}
//
// Hello comes first; the answer is Welcome, or the connection is closed. Staged checkpoints
// stay in the store while the connection lives. Without its loader a shim serves on, dials
// again and sends everything again: its hello, its stages (a loader continues them from
// the bytes it has), its status.
type (
	// FromPod is one line of a shim.
	FromPod struct {
		Hello  *Shim                    `json:"hello,omitempty"`
		Stage  *Stage                   `json:"stage,omitempty"`
		Verify *Verify                  `json:"verify,omitempty"`
		Status *functions.ReplicaStatus `json:"status,omitempty"`
	}

	// ToPod is one line of a loader.
	ToPod struct {
		Welcome  *Welcome  `json:"welcome,omitempty"`
		Staging  *Staging  `json:"staging,omitempty"`
		Staged   *Staged   `json:"staged,omitempty"`
		Failed   *Failed   `json:"failed,omitempty"`
		Verified *Verified `json:"verified,omitempty"`
		Stop     *Drain    `json:"stop,omitempty"`
	}

	// Shim is the hello of a shim. The loader finds out by itself which pod it is in.
	Shim struct {
		PodIP   string `json:"pod_ip"`
		Port    int    `json:"port"` // of its HTTP server
		Version string `json:"version"`
		Folders bool   `json:"folders,omitempty"` // it accepts open folders over the socket
	}

	// Stage requests a checkpoint: a model's, or an adapter's.
	Stage struct {
		ID     int      `json:"id"` // chosen by the shim, from 1; a repeated ID is the same request
		Source string   `json:"source"`
		Files  []string `json:"files,omitempty"`  // patterns of files to stage in addition to the usual ones
		Digest string   `json:"digest,omitempty"` // required digest, sha256:…; empty: any
	}

	// Verify has the loader read a staged checkpoint again. Files that are not what was
	// staged are removed, so that the next Stage fetches them.
	Verify struct {
		ID     int    `json:"id"` // of the Stage
		Digest string `json:"digest"`
	}

	// Welcome answers Shim.
	Welcome struct {
		Node  string `json:"node"`
		UID   string `json:"uid"`   // the pod's UID in Kubernetes
		Store string `json:"store"` // the node's folder that contains all paths of Staged
	}

	// Staging is the progress of a Stage: sent at once, on each change of state, and
	// otherwise at most ten times a second.
	Staging struct {
		ID    int    `json:"id"`
		Done  int64  `json:"done"`           // bytes in the store
		Total int64  `json:"total"`          // bytes in all; 0 while unknown
		State string `json:"state"`          // a loader.State
		Note  string `json:"note,omitempty"` // what it waits for, or what is wrong with the source
	}

	// Staged reports a complete and verified checkpoint.
	Staged struct {
		ID     int      `json:"id"`
		Path   string   `json:"path"` // on the node: the folder of the files under their own names
		Digest string   `json:"digest"`
		Bytes  int64    `json:"bytes"`
		Files  []string `json:"files"`
		Folder bool     `json:"folder,omitempty"` // the open folder comes with this line
	}

	// Failed reports a failed Stage. The shim may request it again.
	Failed struct {
		ID      int    `json:"id"`
		Kind    string `json:"kind"` // a source.Kind, or one of the constants below
		Message string `json:"message"`
		Fix     string `json:"fix,omitempty"` // what a person can do
	}

	// Verified answers Verify. Without Damaged and Error every byte is what was staged;
	// with Error alone the checkpoint could not be read.
	Verified struct {
		ID      int    `json:"id"`
		Damaged bool   `json:"damaged,omitempty"` // the checkpoint was removed
		Error   string `json:"error,omitempty"`
	}

	// Drain has a shim refuse new requests, and end its engine when none are in flight
	// or after Seconds.
	Drain struct {
		Seconds float64 `json:"seconds"`
		Reason  string  `json:"reason"`
	}
)

func (f *Failed) Error() string {
	if f.Fix == "" {
		return f.Message
	}
	return f.Message + "; " + f.Fix
}

// Kinds of Failed beside those of sources.
const (
	KindRefused = "refused_by_loader" // this loader does not stage this source, or not so many bytes at once
	KindEnding  = "loader_ending"     // retry when the next loader is there
)

// Bounds of a shim's lines.
const (
	MaxLine    = 1 << 20 // bytes of one line, in both directions
	MaxSource  = 4096    // bytes of Stage.Source
	MaxFiles   = 64      // patterns of Stage.Files
	MaxPattern = 512     // bytes of each
)

// Check returns why a Stage is malformed; nil if it is not. It does not check whether the
// source can be staged.
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

// isPlainText reports whether s is UTF-8 without control characters, which move a cursor.
func isPlainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Owners is the list of a node's pods by namespace and the namespaces' allowed sources. The
// node's loader needs it to keep teams apart. Each list replaces the one before.
type Owners struct {
	Said  bool                // always true: gob does not send a struct of zero values
	Allow map[string][]string // namespace to allowed prefixes of sources; a namespace that is absent may stage all
	Pods  map[string]string   // namespace of each pod of the node by its UID; empty if Allow is
}
