// Package modellist makes items of /v1/models for functions (state and progress, from snapshots),
// adapters, Routers and Compositions, and writes one or the list in OpenAI's or Anthropic's form.
// It wakes nothing: consoles poll it.
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

// Ready is the item of a Router or a Composition, which is always there.
func Ready(id, kind string) Item {
	return Item{ID: id, Object: "model", Created: createdEpoch, OwnedBy: kind, Status: Status{Value: "loaded", State: functions.Ready.Word()}}
}

// Form is that of an answer.
type Form bool

// OpenAI's form is the common one; requests with the field anthropic-version get Anthropic's.
const (
	OpenAI    Form = false
	Anthropic Form = true
)

// anthropicItem is one model in Anthropic's list.
type anthropicItem struct {
	Type        string    `json:"type"`
	ID          string    `json:"id"`
	DisplayName string    `json:"display_name"`
	CreatedAt   time.Time `json:"created_at"`
	Lifecycle   string    `json:"lifecycle"`
}

func (i Item) anthropic() anthropicItem {
	return anthropicItem{"model", i.ID, i.ID, time.Unix(i.Created, 0).UTC(), "active"}
}

func WriteOne(res *httpserver.Response, it Item, form Form) *openai.Error {
	if form == Anthropic {
		return write(res, it.anthropic())
	}
	return write(res, it)
}

// WriteList answers with all items: Anthropic's list has one page too.
func WriteList(res *httpserver.Response, items []Item, form Form) *openai.Error {
	if form == OpenAI {
		return write(res, struct {
			Object string `json:"object"`
			Data   []Item `json:"data"`
		}{"list", items})
	}
	page := struct {
		Data    []anthropicItem `json:"data"`
		HasMore bool            `json:"has_more"`
		FirstID *string         `json:"first_id"`
		LastID  *string         `json:"last_id"`
	}{Data: []anthropicItem{}}
	for i := range items {
		page.Data = append(page.Data, items[i].anthropic())
	}
	if len(items) > 0 {
		page.FirstID, page.LastID = &items[0].ID, &items[len(items)-1].ID
	}
	return write(res, page)
}

func write(res *httpserver.Response, out any) *openai.Error {
	body, err := json.Marshal(out)
	if err != nil {
		return openai.New(openai.InternalError, "")
	}
	res.Body = body
	res.Set("content-type", "application/json")
	res.Set("cache-control", "no-store") // states change, and it is the caller's own list
	return nil
}
