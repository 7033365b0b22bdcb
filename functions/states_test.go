package functions

import (
	"testing"
	"time"
)

func TestEngineTime(t *testing.T) {
	span := func(p Phase, seconds float64) Span { return Span{Phase: p, Duration: seconds} }
	for name, c := range map[string]struct {
		start  time.Duration
		phases []Span
		want   time.Duration
	}{
		"nothing known":         {time.Minute, nil, time.Minute},
		"placed and staged":     {time.Hour, []Span{span(PhasePlace, 60), span(PhaseStage, 3000), span(PhaseSpawn, 10)}, 9 * time.Minute},
		"the download failed":   {time.Hour, []Span{span(PhaseStage, 3600)}, 0},
		"longer than the start": {time.Minute, []Span{span(PhaseStage, 1e300)}, 0},
		"a clock that ran back": {time.Minute, []Span{span(PhaseStage, -5)}, time.Minute},
	} {
		if got := EngineTime(c.start, c.phases); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
