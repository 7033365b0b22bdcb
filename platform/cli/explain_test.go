package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestDecisionWords: a decision says what was chosen in the words of its kind, and numbers have
// units; what is no reason is not under WHY NOT.
func TestDecisionWords(t *testing.T) {
	score := 24.25
	for name, x := range map[string]struct {
		e              functions.Explanation
		want, unwanted string
	}{
		"placed": {functions.Explanation{Kind: "place", Chosen: "vm", Reason: "requests wait for it", Candidates: []functions.Candidate{
			{Node: "vm", Score: &score, Tier: functions.TierRemote, Parts: []functions.ScorePart{{Name: "ready", Value: 24}, {Name: "store", Value: 0.25}}}}},
			"Placed 1m0s ago: vm, because requests wait for it\n\n   NODE  COST    PARTS                   TIER\n*  vm    24.25s  ready 24s, " +
				"store 0.25s  REMOTE\n", "WHY NOT"},
		"nowhere":     {functions.Explanation{Kind: "place", Reason: "it needs 1 GPU"}, "ago: no node was chosen, because it needs 1 GPU\n", "nothing"},
		"scale":       {functions.Explanation{Kind: "scale", Reason: "it has many", Candidates: []functions.Candidate{{Score: new(0.0), Parts: []functions.ScorePart{{Name: "lacks", Value: 1}}}}}, "Wants more 1m0s ago, because it has many\n\n   PARTS\n   lacks 1\n", "chosen"},
		"evicted":     {functions.Explanation{Kind: "evict", Chosen: "r-1", Candidates: []functions.Candidate{{Replica: "r-1", Score: &score, Parts: []functions.ScorePart{{Name: "loss", Value: 24.25}, {Name: "gib", Value: 12}, {Name: "idle_seconds", Value: 90}, {Name: "back_seconds", Value: 4.5}}}}}, "LOSS   PARTS\n*  r-1      24.25  12 GiB, idle 1m30s, back 4.5s\n", "SCORE"},
		"not evicted": {functions.Explanation{Kind: "evict", Reason: "all are busy"}, "ago: nothing was evicted, because all are busy\n", "chosen"},
	} {
		var out strings.Builder
		x.e.Decided = began
		p := printer{Terminal: &kit.Terminal{Out: &out, Now: func() time.Time { return noon }}}
		p.decision(x.e)
		if got := out.String(); !strings.Contains(got, x.want) || strings.Contains(got, x.unwanted) {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}
