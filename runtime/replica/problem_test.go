package replica

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// troubledNode is a node whose source is asked again for 20 s.
type troubledNode struct {
	fakeNode
	came functions.Bytes // of 9 MiB, before that
	left string          // what is wrong with the source when the staging ends
}

func (n *troubledNode) Stage(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error) {
	req.Problem("asked again: 429")
	if n.came > 0 {
		progress(n.came, 9<<20)
	}
	select {
	case <-time.After(20 * time.Second):
	case <-ctx.Done():
		return Checkpoint{}, ctx.Err()
	}
	req.Problem(n.left)
	return n.fakeNode.Stage(ctx, req, progress)
}

// TestProblemOfAStaging: a replica's status has what is wrong with its source, while it is
// asked again and where files that were staged before are used; so has the error of a staging
// that its deadline ends.
func TestProblemOfAStaging(t *testing.T) {
	for _, tc := range []struct {
		name, left, note string
		stage            time.Duration
		failed           string
		came             functions.Bytes
	}{
		{name: "the source answers", stage: time.Minute},
		{name: "files of before", left: "those staged before are used", note: "those staged before are used", stage: time.Minute},
		{name: "the deadline", stage: 10 * time.Second, note: "asked again: 429", failed: "stage: not staged within 10s (deadlines.stage): asked again: 429"},
		{name: "the deadline on the way", stage: 10 * time.Second, came: 5 << 20, note: "asked again: 429",
			failed: "stage: not staged within 10s (deadlines.stage), 5 MiB of 9 MiB came: asked again: 429"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &troubledNode{left: tc.left, came: tc.came}
				o := n.options()
				o.Stager, o.Spec.Deadlines.Stage = n, functions.Duration(tc.stage)
				l := startReplica(t, o, New)
				time.Sleep(5 * time.Second)
				if st := l.Status(); st.State != functions.Downloading || st.StartNote != "asked again: 429" {
					t.Errorf("%s %q", st.State, st.StartNote)
				}
				time.Sleep(time.Minute)
				st := l.Status()
				if want := functions.Ready; tc.failed == "" && st.State != want || !strings.Contains(st.Error, tc.failed) || st.StartNote != tc.note {
					t.Errorf("%s %q %q", st.State, st.Error, st.StartNote)
				}
			})
		})
	}
}
