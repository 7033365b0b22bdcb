package control

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/utils/lru"

	"github.com/thaw-dev/thaw/functions"
)

func TestFirstToken(t *testing.T) {
	f := firstTokens{lru.New(maxFirstTokens)}
	f.record(functions.Name{}, "", time.Second)
	f.record(functions.Name{}, "cs-1", 2*time.Second)
	f.record(functions.Name{}, "cs-1", 9*time.Second) // from another activator
	phases := []functions.Span{{Phase: functions.PhaseQueue}}
	got := f.complete(functions.Timeline{ID: "cs-1", State: functions.Ready, Total: 3, Phases: phases})
	if len(got.Phases) != 2 || got.Phases[1].Phase != functions.PhaseFirstToken || got.Phases[1].Start != 3 || got.Phases[1].Duration != 2 ||
		len(phases) != 1 {
		t.Errorf("%+v", got)
	}
	for _, x := range []functions.Timeline{{ID: "cs-2", State: functions.Ready}, {ID: "cs-1", State: functions.Loading}, {State: functions.Ready}} {
		if got := f.complete(x); len(got.Phases) != 0 {
			t.Errorf("%+v", got)
		}
	}
	for i := range 3 * maxFirstTokens {
		f.record(functions.Name{}, fmt.Sprint(i), time.Second)
	}
	if f.Len() != maxFirstTokens {
		t.Errorf("%d are kept", f.Len())
	}
}
