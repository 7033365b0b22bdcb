package nodeloader

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
)

// Bounds of a status, far above real ones: the controller gets the statuses of all pods.
const (
	maxName  = 256  // bytes of a name
	maxText  = 4096 // bytes of a text for people
	maxItems = 256  // of a list
)

// sanitizeStatus keeps the fields of a status that a pod may report. The controller knows
// the replica by the UID. The engine's key stays in the pod, whose clients go through the
// shim. Memory is the pod's own: evicting others frees none for it.
func sanitizeStatus(st functions.ReplicaStatus) functions.ReplicaStatus {
	st.ID, st.Team, st.Model, st.Spec, st.Key, st.GPUs, st.ShortOf, st.GPUMemory = "", "", "", nil, "", nil, "", 0
	st.State, st.Tier = functions.State(clipText(string(st.State), maxName)), functions.Tier(clipText(string(st.Tier), maxName))
	st.Endpoint, st.Start = clipText(st.Endpoint, maxName), clipText(st.Start, maxName)
	st.Error, st.StartNote = clipText(st.Error, maxText), clipText(st.StartNote, maxText)
	st.Phases = st.Phases[:min(len(st.Phases), maxItems)]
	parts := maxItems
	for i := range st.Phases {
		p := &st.Phases[i]
		p.Phase = functions.Phase(clipText(string(p.Phase), maxName))
		p.Parts = p.Parts[:min(len(p.Parts), parts)]
		parts -= len(p.Parts)
		for j := range p.Parts {
			p.Parts[j].Name = clipText(p.Parts[j].Name, maxName)
		}
	}
	st.Adapters = st.Adapters[:min(len(st.Adapters), maxItems)]
	for i := range st.Adapters {
		st.Adapters[i] = clipText(st.Adapters[i], maxName)
	}
	if len(st.AdapterNotes) > maxItems {
		st.AdapterNotes = nil
	}
	for name, note := range st.AdapterNotes {
		if len(name) > maxName {
			delete(st.AdapterNotes, name)
		} else if len(note) > maxText {
			st.AdapterNotes[name] = clipText(note, maxText)
		}
	}
	return st
}

func clipText(s string, n int) string { return s[:min(len(s), n)] }

// lineLimiter bounds the lines per second that are read from a pod.
type lineLimiter struct {
	perSecond int // lines a second
	since     time.Time
	count     int
}

// wait waits until the next line may be read; false if ctx ended first.
func (l *lineLimiter) wait(ctx context.Context) bool {
	now := time.Now()
	if now.Sub(l.since) >= time.Second {
		l.since, l.count = now, 0
	}
	if l.count++; l.count <= l.perSecond {
		return true
	}
	return backoff.Sleep(ctx, l.since.Add(time.Second).Sub(now))
}
