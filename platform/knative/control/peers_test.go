package control

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// TestPeering: new loaders are announced to all others, hundreds at once together.
func TestPeering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var to []string
		var lenders []functions.Peer
		told := map[string][]functions.Peer{}
		calls := 0
		p := &peerAnnouncer{wakeup: newest.NewSignal(), servers: func() ([]string, []functions.Peer) {
			mu.Lock()
			defer mu.Unlock()
			return to, lenders
		}, send: func(node string, d controlstream.Update) bool {
			mu.Lock()
			defer mu.Unlock()
			calls++
			told[node] = *d.Peers
			return true
		}}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { p.Run(ctx) })
		for i := range 500 {
			name := fmt.Sprintf("n%03d", i)
			mu.Lock()
			to = append(to, name)
			lenders = append(lenders, functions.Peer{ID: name, URL: "http://" + name})
			mu.Unlock()
			p.wakeup.Set()
		}
		mu.Lock()
		to = append(to, "lends-nothing")
		mu.Unlock()
		count := func() int {
			time.Sleep(announceDelay)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return calls
		}
		if calls := count(); calls != 501 {
			t.Errorf("%d messages for 501 nodes that came at once", calls)
		}
		mu.Lock()
		for _, node := range to {
			want := 499
			if node == "lends-nothing" {
				want = 500
			}
			got := told[node]
			if len(got) != want {
				t.Fatalf("%s knows %d peers", node, len(got))
			}
			for _, x := range got {
				if x.ID == node {
					t.Fatalf("%s is told of itself", node)
				}
			}
		}
		mu.Unlock()
		time.Sleep(time.Hour)
		if count() != 501 {
			t.Error("told again though nothing changed")
		}
		p.wakeup.Set()
		if calls := count(); calls != 2*501 {
			t.Errorf("%d messages", calls)
		}
		cancel()
		wg.Wait()
	})
}
