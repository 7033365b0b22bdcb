package functions

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// ErrStaleEpoch refuses a command from an orchestrator that has been superseded.
var ErrStaleEpoch = errors.New("stale epoch: a newer orchestrator has sent a command")

// MaxEpochStep bounds how much higher than the last a new epoch may be. Each start of an
// orchestrator raises it by one; a far higher one would shut out all later orchestrators. An agent accepts any epoch as its first.
const MaxEpochStep = 1 << 20

// LoadRequest makes an agent start a replica of a model. It is the body of
// POST /load_model. The same id again is the same replica: loading is idempotent.
type LoadRequest struct {
	ID     string    `json:"id"`
	Team   string    `json:"team"`
	Model  string    `json:"model"`
	Spec   ModelSpec `json:"spec"`
	Dir    string    `json:"dir,omitempty"` // folder of the model file, where the source is relative to it
	Digest string    `json:"digest,omitempty"`
	Epoch  int64     `json:"epoch"`
	GPUs   []int     `json:"gpus,omitempty"` // indices the scheduler chose
}

// LoadReply answers a LoadRequest.
type LoadReply struct {
	ID    string `json:"id"`
	State State  `json:"state"`
}

// ReasonCalledOff is the reason of an unload that only concerns a replica with
// no process yet: one that has its process goes on.
const ReasonCalledOff = "called_off"

// UnloadRequest ends a replica: DRAINING for at most DrainSeconds, then gone.
type UnloadRequest struct {
	ID           string  `json:"id"`
	Epoch        int64   `json:"epoch"`
	DrainSeconds float64 `json:"drain_seconds"`
	Reason       string  `json:"reason,omitempty"`
}

// SleepRequest puts a replica to sleep: level 1 keeps its weights in host
// memory, 2 drops them, 0 wakes it.
type SleepRequest struct {
	ID     string `json:"id"`
	Epoch  int64  `json:"epoch"`
	Level  int    `json:"level"`
	Reason string `json:"reason,omitempty"`
}

// AdapterError is why an adapter was not loaded. Code is one of the catalogue's:
// adapter_not_found, adapter_invalid or adapter_unavailable.
type AdapterError struct {
	Code    string
	Message string
}

func (e *AdapterError) Error() string { return e.Message }

// AdapterRequest has a replica load one of its model's adapters.
type AdapterRequest struct {
	ID    string `json:"id"`
	Epoch int64  `json:"epoch"`
	Name  string `json:"name"` // as the model file names it
}

// JoinedAgent is an agent of another machine that has joined a server.
type JoinedAgent struct {
	ID     string    `json:"id"`
	Key    string    `json:"key"` // SHA-256 of its public key, in hex
	Joined time.Time `json:"joined"`
	// Removed is when it was removed or replaced; zero in lists of agents.
	Removed time.Time `json:"removed,omitzero"`
}

// Heartbeat is an agent's report of itself, every 2 s and at once on a change.
type Heartbeat struct {
	AgentID           string          `json:"agent_id"`
	Epoch             int64           `json:"epoch"`
	State             NodeState       `json:"state"`
	Version           string          `json:"version"`
	URL               string          `json:"url,omitempty"`     // where the agent answers; empty in process
	Machine           string          `json:"machine,omitempty"` // identity of the host: sources that are its folders are readable only here
	GPUs              []GPU           `json:"gpus"`
	Memory            Capacity        `json:"memory"`
	CPU               CPU             `json:"cpu,omitempty"`                // reservable by replicas; 0: not counted
	Pods              int             `json:"pods,omitempty"`               // at most; 0: not counted
	UnmetRequirements []string        `json:"unmet_requirements,omitempty"` // models that require this of a node (Pod.Requires) may not come here
	Sleep             Bytes           `json:"sleep_memory,omitempty"`       // of Memory, what engines may hold asleep; 0: all of it
	Store             StoreUse        `json:"store"`
	Models            []ReplicaStatus `json:"models"`
	Cached            []CachedModel   `json:"cached,omitempty"`   // checkpoints here with no replica
	Warm              []WarmParent    `json:"warm,omitempty"`     // warm interpreters; their memory is in Memory
	PeerURL           string          `json:"peer_url,omitempty"` // where other nodes borrow blocks of checkpoints
	Borrows           bool            `json:"borrows,omitempty"`  // it can stage folders that another node lends

	// Heartbeats travel by more than one way, and so come late and twice. Seq
	// grows with each of one life of the agent, which has a name of its own; 0: it
	// unknown, and every one counts. Change, where it is not 0, stays the same
	// while nothing has changed but times, rates and use.
	Life   string `json:"life,omitempty"`
	Seq    uint64 `json:"seq,omitempty"`
	Change uint64 `json:"change,omitempty"`
}

// ForeignGPUMemory describes the memory of the node's GPUs that others hold; "" for none.
func (h *Heartbeat) ForeignGPUMemory() string {
	var all []string
	for _, g := range h.GPUs {
		if g.Holders != "" {
			all = append(all, fmt.Sprintf("of GPU %d %s", g.Index, g.Holders))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "memory of GPUs is not free for models: " + strings.Join(all, "; ")
}

// HeartbeatReply is the server's answer to a heartbeat.
type HeartbeatReply struct {
	// Peers are the other nodes that lend blocks of checkpoints.
	Peers []Peer `json:"peers"`
	// Removed are the digests of the keys of agents that were removed or replaced: no node
	// exchanges blocks with them.
	Removed []string `json:"removed,omitempty"`
}

// Peer is a node that lends blocks of checkpoints to other nodes.
type Peer struct {
	ID  string `json:"id"`
	URL string `json:"url"`
}

// WarmParent is a warm interpreter of a node: a process that has imported what
// an engine imports, from which engines are forked.
type WarmParent struct {
	Engine   string    `json:"engine"`
	Program  string    `json:"program,omitempty"`
	State    string    `json:"state"` // starting, ready, ending, failed
	Note     string    `json:"note,omitempty"`
	Version  string    `json:"version,omitempty"` // of the engine
	Python   string    `json:"python,omitempty"`
	Memory   Bytes     `json:"memory,omitempty"`
	Reserved bool      `json:"reserved,omitempty"` // its memory is not available to replicas
	Forks    int       `json:"forks,omitempty"`
	Imports  float64   `json:"imports,omitempty"` // seconds they took
	Since    time.Time `json:"since"`
}

// GPU is one GPU as NVML sees it. Sizes in bytes, utilisation in percent.
type GPU struct {
	Index       int    `json:"index"`
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	MemoryTotal Bytes  `json:"memory_total"`
	MemoryFree  Bytes  `json:"memory_free"`
	Utilization int    `json:"utilization"`
	Health      string `json:"health"` // "ok", GPUUnknown, or what is wrong

	// Foreign is the memory, of MemoryTotal, that processes hold which no thaw started;
	// Holders describes them.
	Foreign Bytes  `json:"foreign_memory,omitempty"`
	Holders string `json:"foreign_holders,omitempty"`

	// Group: GPUs of one group reach each other fastest (NVLink, or one memory
	// node of the host); 0 unknown.
	Group int `json:"group,omitempty"`
}

// GPUUnknown is the health of a GPU that no program reads. Its free memory and its
// utilisation are not known either, and its total memory may be; 0 unknown.
const GPUUnknown = "unknown"

// MarshalJSON omits unknown values.
func (g GPU) MarshalJSON() ([]byte, error) {
	if g.Health != GPUUnknown {
		type known GPU
		return json.Marshal(known(g))
	}
	return json.Marshal(struct {
		Index       int    `json:"index"`
		Name        string `json:"name,omitempty"`
		MemoryTotal Bytes  `json:"memory_total,omitzero"`
		Health      string `json:"health"`
	}{g.Index, g.Name, g.MemoryTotal, g.Health})
}

// Capacity of a resource in bytes: what may be used, and what is.
type Capacity struct {
	Total Bytes `json:"total"`
	Used  Bytes `json:"used"`
}

// StoreUse is the byte budget of the store and what it holds.
type StoreUse struct {
	Bytes  Bytes        `json:"bytes"`
	Used   Bytes        `json:"used"`
	Loader *LoaderStats `json:"loader,omitempty"`
}

// CachedModel is a checkpoint on a node.
type CachedModel struct {
	Source string `json:"source"`
	Digest string `json:"digest"`
	Tier   Tier   `json:"tier"`
	Bytes  Bytes  `json:"bytes"`
	Memory Bytes  `json:"memory_bytes,omitempty"` // of them in the page cache
}

// Shortage is the memory that a start found too little of; "" for any other failure.
type Shortage string

// The kinds of memory.
const (
	ShortOfGPUMemory  Shortage = "gpu_memory"
	ShortOfHostMemory Shortage = "host_memory"
)

// ReplicaStatus is one replica in a heartbeat.
type ReplicaStatus struct {
	ID         string `json:"id"`
	Team       string `json:"team"`
	Model      string `json:"model"`
	State      State  `json:"state"`
	Tier       Tier   `json:"tier"`
	Bytes      Bytes  `json:"bytes"`       // of the checkpoint, so far
	TotalBytes Bytes  `json:"total_bytes"` // of the checkpoint, whole; 0 unknown
	Percent    int    `json:"percent"`     // of the present phase; -1 unknown
	Endpoint   string `json:"inference_endpoint_url"`
	EngineLoad
	Phases     []Span     `json:"phases"`
	Error      string     `json:"error,omitempty"`    // first root cause of FAILED
	ShortOf    Shortage   `json:"short_of,omitempty"` // of a start that FAILED for want of memory
	Spec       *ModelSpec `json:"spec,omitempty"`     // so that an orchestrator that restarts can adopt it
	GPUs       []int      `json:"gpus,omitempty"`
	Weights    string     `json:"weights,omitempty"`    // identifies the bytes of the checkpoint that a READY one loaded; "" unknown
	Start      string     `json:"start,omitempty"`      // StartWarm or StartPlain
	StartNote  string     `json:"start_note,omitempty"` // why plain, where warm was wanted
	GPUMemory  Bytes      `json:"gpu_memory,omitempty"` // held of each GPU, at most, as the driver counts; 0 unknown
	SleepLevel int        `json:"sleep_level,omitempty"`
	Adapters   []string   `json:"adapters,omitempty"` // loaded now
	// AdapterNotes are remarks about adapters whose files were read,
	// by name: an adapter of the keys and values breaks the sharing of the cache.
	AdapterNotes map[string]string `json:"adapter_notes,omitempty"`
	// Key is the engine's API key, for callers that reach the engine without its agent.
	// It is a secret and never listed.
	Key   string `json:"engine_key,omitempty"`
	Since int64  `json:"since"` // milliseconds since the state was entered
}

// EngineLoad is what an engine reports of its requests.
type EngineLoad struct {
	InFlight       int     `json:"in_flight"`         // in generation
	QueueLength    int     `json:"queue_length"`      // waiting in the engine
	KVCacheHitRate float64 `json:"kv_cache_hit_rate"` // share of prompt tokens found in the prefix cache, 0 to 1
}

// Traffic is what thaw's own requests to an engine show of it. The zero value is that of
// an engine without any.
type Traffic struct {
	InFlight int       // requests that were sent and have not ended
	Waiting  time.Time // when the oldest of them that has no byte of its answer's body was sent; zero: none
	LastByte time.Time // when the engine last sent a byte; zero: it sent none on its open connections
}

// ErrorRun counts the requests in a row that an engine answered with an error of its own. Its
// zero value is none, and its method may be called from any goroutine.
type ErrorRun struct{ count atomic.Int32 }

// Note notes the status of an answer, and reports whether the engine is to be probed: at the
// second, fourth, eighth error in a row and so on. An engine that is busy (503) or lacks what it
// was asked for (501) works, and one that refuses a request (4xx) need not have run the model.
func (r *ErrorRun) Note(status int) (probe bool) {
	switch {
	case status < 400:
		if r.count.Load() != 0 { // most are good: no write to what all requests share
			r.count.Store(0)
		}
		return false
	case status < 500 && status != 424, status == 501, status == 503: // 424 is TGI's for a generation that failed
		return false
	}
	n := r.count.Add(1)
	return n > 1 && n&(n-1) == 0
}
