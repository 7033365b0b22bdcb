package modellist

import (
	"encoding/json/v2"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Item is one model in OpenAI's list. Status has llama.cpp's shape, because
// consoles show it.
type Item struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"` // the team of a model, or router, remote or composition
	Parent  string `json:"parent,omitzero"`
	Status  Status `json:"status"`
}

// Status is the state of a model.
type Status struct {
	Value   string `json:"value"` // loaded, loading or unloaded
	State   string `json:"state"` // the word of the contracts
	Percent *int   `json:"percent,omitzero"`
	ETA     *int   `json:"eta_s,omitzero"`
	Failed  bool   `json:"failed,omitzero"`
	Reason  string `json:"reason,omitzero"`
}

// createdEpoch is the "created" of every model: the date of its weights is unknown,
// and clients want a number.
const createdEpoch = 1767225600

// Describe is the item of a function; a nil snapshot is that of an alias whose functions are
// not published yet.
func Describe(f *snapshot.Snapshot, name functions.Name, id string, now time.Time) Item {
	it := Item{ID: id, Object: "model", Created: createdEpoch, OwnedBy: name.Team,
		Status: Status{Value: "unloaded", State: functions.Unloaded.Word()}}
	if f == nil {
		return it
	}
	if f.Remote != nil {
		it.OwnedBy = "remote"
	}
	s := &it.Status
	s.State, s.Reason = admission.StateWord(f)
	switch {
	case len(f.Replicas) > 0:
		s.Value, s.State = "loaded", functions.Ready.Word()
	case f.Starting():
		s.Value = "loading"
		if p := f.Progress.Percent; p >= 0 {
			s.Percent = &p
		}
		if left := admission.LikelyETA(f, now); left >= 0 {
			n := int((left + time.Second - 1) / time.Second)
			s.ETA = &n
		}
	case admission.BreakerOpen(f, now):
		s.Failed, s.State, s.Reason = true, functions.Failed.Word(), f.Failure.Reason
	}
	return it
}

// WithAdapter is the item of an adapter of this model: loaded where a replica has i, or where
// engines have theirs from the start.
func (i Item) WithAdapter(f *snapshot.Snapshot, id, parent, adapter string, onDemand bool) Item {
	i.ID, i.Parent = id, parent
	if onDemand && i.Status.Value == "loaded" && len(f.Replicas) > 0 && !f.AdapterLoaded(adapter) {
		i.Status.Value, i.Status.State = "unloaded", functions.Unloaded.Word()
	}
	return i
}

// List is the answer with several items.
func List(items []Item) any {
	return struct {
		Object string `json:"object"`
		Data   []Item `json:"data"`
	}{"list", items}
}

// Ready is the item of a Router or a Composition, which is always there.
func Ready(id, kind string) Item {
	return Item{ID: id, Object: "model", Created: createdEpoch, OwnedBy: kind, Status: Status{Value: "loaded", State: functions.Ready.Word()}}
}

// Write answers with an item, or a list of them.
func Write(res *httpserver.Response, out any) *openai.Error {
	body, err := json.Marshal(out)
	if err != nil {
		return openai.New(openai.InternalError, "")
	}
	res.Body = body
	res.Set("content-type", "application/json")
	return nil
}
