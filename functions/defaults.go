package functions

import (
	"cmp"
	"time"
)

// Defaults returns the spec that a model file is decoded over, so that an explicit 0 in
// the file stays a 0.
// Source and engine have no default.
func Defaults() ModelSpec {
	return ModelSpec{
		Scale: Scale{Min: 0, Max: 1, Target: 8, Idle: Duration(5 * time.Minute)},
		Queue: Queue{Requests: 1000, Bytes: 64 << 20, Wait: Duration(5 * time.Minute)},
		Deadlines: Deadlines{
			Stage:      Duration(time.Hour),
			Start:      Duration(10 * time.Minute),
			FirstToken: Duration(2 * time.Minute),
			Hang:       Duration(10 * time.Second),
			Drain:      Duration(30 * time.Second),
		},
	}
}

// DefaultHealth is the default health path of a command engine.
const DefaultHealth = "/health"

// NewModel is an empty model with every default set.
func NewModel() *Model {
	return &Model{APIVersion: APIVersion, Kind: KindModel, Metadata: Metadata{Namespace: DefaultTeam}, Spec: Defaults()}
}

// SetDefaults fills zero fields. It is for models built by a program; a file is decoded
// over NewModel instead, because a 0 written in a file is not an absent value.
func (m *Model) SetDefaults() {
	m.APIVersion, m.Kind = cmp.Or(m.APIVersion, APIVersion), cmp.Or(m.Kind, KindModel)
	m.Metadata.Namespace = cmp.Or(m.Metadata.Namespace, DefaultTeam)
	s, d := &m.Spec, Defaults()
	if s.Engine == EngineCommand {
		s.Health = cmp.Or(s.Health, DefaultHealth)
	}
	s.Scale.Max = cmp.Or(s.Scale.Max, max(d.Scale.Max, s.Scale.Min))
	s.Scale.Target = cmp.Or(s.Scale.Target, d.Scale.Target)
	s.Scale.Idle = cmp.Or(s.Scale.Idle, d.Scale.Idle)
	s.Queue.Requests = cmp.Or(s.Queue.Requests, d.Queue.Requests)
	s.Queue.Bytes = cmp.Or(s.Queue.Bytes, d.Queue.Bytes)
	s.Queue.Wait = cmp.Or(s.Queue.Wait, d.Queue.Wait)
	s.Deadlines.Stage = cmp.Or(s.Deadlines.Stage, d.Deadlines.Stage)
	s.Deadlines.Start = cmp.Or(s.Deadlines.Start, d.Deadlines.Start)
	s.Deadlines.FirstToken = cmp.Or(s.Deadlines.FirstToken, d.Deadlines.FirstToken)
	s.Deadlines.Hang = cmp.Or(s.Deadlines.Hang, d.Deadlines.Hang)
	s.Deadlines.Drain = cmp.Or(s.Deadlines.Drain, d.Deadlines.Drain)
}
