package functions

import (
	"strings"
	"time"
)

// CacheEntry is a published checkpoint in the store of a node, or an unfinished download.
type CacheEntry struct {
	Node     string    `json:"node"`
	Digest   string    `json:"digest"` // sha256:…; of an unfinished download part:…, which no digest is
	Source   string    `json:"source"`
	Path     string    `json:"path"` // on the node: the folder with the files under their own names
	Files    int       `json:"files"`
	Bytes    Bytes     `json:"bytes"`
	Memory   *Bytes    `json:"memory_bytes,omitempty"` // of them in the page cache, where that is known
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"last_used"`
	InUse    bool      `json:"in_use"` // held by a process
	Pinned   bool      `json:"pinned"` // never evicted
}

// partPrefix begins the name of an unfinished download where a digest is for a checkpoint.
const partPrefix = "part:"

// PartName names an unfinished download by the key of its staging.
func PartName(key string) string { return partPrefix + key }

// CutPart returns the key of the staging that the name of an unfinished download holds.
func CutPart(digest string) (key string, ok bool) { return strings.CutPrefix(digest, partPrefix) }

// Unfinished reports whether e is a download that was not finished: it can only be removed.
func (e CacheEntry) Unfinished() bool { return strings.HasPrefix(e.Digest, partPrefix) }

// DigestOfHex is the digest, or the name of an unfinished download, whose hex digits a path has.
func DigestOfHex(hex string) string {
	if len(hex) == 32 {
		return partPrefix + hex
	}
	return "sha256:" + hex
}

// HexOfDigest is the inverse of DigestOfHex.
func HexOfDigest(digest string) string { return digest[strings.LastIndexByte(digest, ':')+1:] }

// StoreAction is what may be done to a checkpoint in a store.
type StoreAction string

// The actions. A checkpoint in use is not removed. Verify reads every byte again
// and removes files whose digest has changed.
const (
	StoreRemove StoreAction = "remove"
	StorePin    StoreAction = "pin"
	StoreUnpin  StoreAction = "unpin"
	StoreVerify StoreAction = "verify"
)

// PrefetchRequest makes a node stage a source into its store.
type PrefetchRequest struct {
	Source string   `json:"source"`
	Dir    string   `json:"dir,omitempty"`    // folder of the model file, where the source is relative to it
	Digest string   `json:"digest,omitempty"` // that the checkpoint must have
	Files  []string `json:"files,omitempty"`  // patterns of files beside the list
	Pin    bool     `json:"pin,omitempty"`
	Memory bool     `json:"memory,omitempty"` // also read it into the page cache, as far as memory allows
	Low    bool     `json:"low,omitempty"`    // behind what requests wait for
}

// StoreProgress is one line about something that takes a while in a store: a
// staging, or a checkpoint that is read again. The last line of a stream has
// the state ready or failed.
type StoreProgress struct {
	Node    string      `json:"node,omitempty"`
	State   string      `json:"state"` // waiting, planning, fetching, publishing, verifying; ready, failed
	Percent int         `json:"percent"`
	Done    Bytes       `json:"bytes"`
	Total   Bytes       `json:"total_bytes"`
	Resumed Bytes       `json:"resumed_bytes,omitempty"` // of Done, here when it began
	Rate    float64     `json:"bytes_per_second,omitempty"`
	ETA     *float64    `json:"eta_s,omitempty"`
	Digest  string      `json:"digest,omitempty"`
	Path    string      `json:"path,omitempty"`     // of what is ready
	InPlace bool        `json:"in_place,omitempty"` // a folder of this machine: nothing was copied
	Note    string      `json:"note,omitempty"`     // for people: what of the source is not staged
	Error   *StoreError `json:"error,omitempty"`    // of what failed
}

// Over reports whether no line follows.
func (p StoreProgress) Over() bool { return p.State == "ready" || p.State == "failed" }

// StoreError is why a store or its loader could not do a thing. Code is stable:
// bad_source, source_not_found, source_denied, source_unavailable,
// source_malformed, source_unstable, source_refused, weights_missing,
// weights_truncated, weights_corrupt, digest_mismatch, insufficient_disk,
// store_failed, not_cached, in_use, node_unreachable,
// node_not_found.
type StoreError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *StoreError) Error() string { return e.Message }

// Status is the HTTP status of the error.
func (e *StoreError) Status() int {
	switch e.Code {
	case "bad_source":
		return 400
	case "source_not_found", CodeNotCached, CodeNoNode:
		return 404
	case CodeInUse:
		return 409
	case "source_unavailable", CodeUnreachable:
		return 503
	case "insufficient_disk":
		return 507
	}
	return 500
}

// Codes of a StoreError that are not the loader's own.
const (
	CodeNotCached   = "not_cached"
	CodeInUse       = "in_use"
	CodeUnreachable = "node_unreachable"
	CodeNoNode      = "node_not_found"
)

// LoaderStats are what a node's loader and store have done since its agent
// began.
type LoaderStats struct {
	Bytes        map[string]Bytes `json:"bytes"` // brought and kept, by the source's scheme; "peer" from other nodes
	Rate         float64          `json:"bytes_per_second"`
	Wasted       Bytes            `json:"wasted"`  // received twice, or discarded
	Resumed      Bytes            `json:"resumed"` // were here when a staging began
	Reused       Bytes            `json:"reused"`  // were another checkpoint's
	PeerSent     Bytes            `json:"lent"`    // sent to other nodes
	Requests     int64            `json:"requests"`
	Retries      int64            `json:"retries"`
	Hedges       int64            `json:"hedges"`    // second requests for what a slow one had not brought
	Throttles    int64            `json:"throttles"` // answers 429 and 503 of sources
	Staged       int64            `json:"staged"`
	Failed       int64            `json:"failed"`
	InFlight     int64            `json:"in_flight"` // ranges, now
	Stagings     int64            `json:"stagings"`  // now
	Evictions    int64            `json:"evictions"`
	EvictedBytes Bytes            `json:"evicted_bytes"`
	Quarantined  int64            `json:"quarantined"` // files that were not what they were
}
