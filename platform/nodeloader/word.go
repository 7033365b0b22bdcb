package nodeloader

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// What a status may hold: far more than any true one does. It goes to the
// controller, which hears all pods.
const (
	maxWord  = 256  // bytes of a name
	maxText  = 4096 // bytes of a text for people
	maxItems = 256  // of a list
)

// worded is what of a status a pod may say. Which replica of what it is the
// controller knows by its uid; its engine's key is for nobody: who asks the pod
// asks the shim.
func worded(st functions.ReplicaStatus) functions.ReplicaStatus {
	st.ID, st.Team, st.Model, st.Spec, st.Key, st.GPUs = "", "", "", nil, "", nil
	st.State, st.Tier = functions.State(clip(string(st.State), maxWord)), functions.Tier(clip(string(st.Tier), maxWord))
	st.Endpoint, st.Start = clip(st.Endpoint, maxWord), clip(st.Start, maxWord)
	st.Error, st.StartNote = clip(st.Error, maxText), clip(st.StartNote, maxText)
	st.Phases = st.Phases[:min(len(st.Phases), maxItems)]
	parts := maxItems
	for i := range st.Phases {
		p := &st.Phases[i]
		p.Phase = functions.Phase(clip(string(p.Phase), maxWord))
		p.Parts = p.Parts[:min(len(p.Parts), parts)]
		parts -= len(p.Parts)
		for j := range p.Parts {
			p.Parts[j].Name = clip(p.Parts[j].Name, maxWord)
		}
	}
	st.Adapters = st.Adapters[:min(len(st.Adapters), maxItems)]
	for i := range st.Adapters {
		st.Adapters[i] = clip(st.Adapters[i], maxWord)
	}
	if len(st.AdapterNotes) > maxItems {
		st.AdapterNotes = nil
	}
	for name, note := range st.AdapterNotes {
		if len(name) > maxWord {
			delete(st.AdapterNotes, name)
		} else if len(note) > maxText {
			st.AdapterNotes[name] = clip(note, maxText)
		}
	}
	return st
}

func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return s
}

// pace slows who says more than anybody has to say.
type pace struct {
	most  int // lines a second
	since time.Time
	said  int
}

// next waits until the next line may be heard; false when ctx ended meanwhile.
func (p *pace) next(ctx context.Context) bool {
	now := time.Now()
	if now.Sub(p.since) >= time.Second {
		p.since, p.said = now, 0
	}
	if p.said++; p.said <= p.most {
		return true
	}
	t := time.NewTimer(p.since.Add(time.Second).Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
