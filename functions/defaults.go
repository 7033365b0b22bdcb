package functions

import "time"

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
	setDefault(&m.APIVersion, APIVersion)
	setDefault(&m.Kind, KindModel)
	setDefault(&m.Metadata.Namespace, DefaultTeam)
	s, d := &m.Spec, Defaults()
	if s.Engine == EngineCommand {
		setDefault(&s.Health, DefaultHealth)
	}
	setDefault(&s.Scale.Max, max(d.Scale.Max, s.Scale.Min))
	setDefault(&s.Scale.Target, d.Scale.Target)
	setDefault(&s.Scale.Idle, d.Scale.Idle)
	setDefault(&s.Queue.Requests, d.Queue.Requests)
	setDefault(&s.Queue.Bytes, d.Queue.Bytes)
	setDefault(&s.Queue.Wait, d.Queue.Wait)
	setDefault(&s.Deadlines.Stage, d.Deadlines.Stage)
	setDefault(&s.Deadlines.Start, d.Deadlines.Start)
	setDefault(&s.Deadlines.FirstToken, d.Deadlines.FirstToken)
	setDefault(&s.Deadlines.Hang, d.Deadlines.Hang)
	setDefault(&s.Deadlines.Drain, d.Deadlines.Drain)
}

// setDefault sets *p to v if it is zero.
func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
