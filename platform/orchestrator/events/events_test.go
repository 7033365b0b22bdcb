package events

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

func TestPublish(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	var out bytes.Buffer
	var hooked []functions.Event
	l := New(func() time.Time { return at }, slog.New(slog.NewTextHandler(&out, nil)), func(v functions.Event) { hooked = append(hooked, v) })
	l.Publish(functions.Event{Kind: "stop", Reason: "idle", Replica: "r1"}, functions.Name{Team: "a", Name: "m"})
	l.Publish(functions.Event{Kind: "node_lost", Node: "n1", Message: "as written"}, functions.Name{})
	got := l.After(0)
	if len(got) != 2 || len(hooked) != 2 {
		t.Fatalf("%d events, %d at the hook", len(got), len(hooked))
	}
	if e := got[0]; e.Seq != 1 || e.Function != "a/m" || !e.At.Equal(at) || e.Message == "" {
		t.Errorf("%+v", e)
	}
	if e := got[1]; e.Seq != 2 || e.Function != "" || e.Message != "as written" {
		t.Errorf("%+v", e)
	}
	for _, want := range []string{"msg=stop", "function=a/m", "replica=r1", "reason=idle", "node=n1", `message="as written"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, &out)
		}
	}
}

func TestAfterKeepsNewest(t *testing.T) {
	l := New(time.Now, slog.New(slog.DiscardHandler), nil)
	for n := range 3*Keep + 7 {
		l.Publish(functions.Event{Kind: "stop"}, functions.Name{})
		all := l.After(0)
		if len(all) != min(n+1, Keep) || all[len(all)-1].Seq != uint64(n+1) || all[0].Seq != uint64(n+2-len(all)) {
			t.Fatalf("after %d events: %d, from %d to %d", n+1, len(all), all[0].Seq, all[len(all)-1].Seq)
		}
	}
	last := uint64(3*Keep + 7)
	for _, c := range []struct {
		seq  uint64
		want int
	}{{last - 1, 1}, {last, 0}, {last + 5, 0}, {last - Keep - 3, Keep}} {
		if got := l.After(c.seq); len(got) != c.want {
			t.Errorf("after %d: %d events, want %d", c.seq, len(got), c.want)
		}
	}
}

func TestFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Followers[int]
		f.Send(0) // to none
		ctx, end := context.WithCancel(t.Context())
		slow, quick := f.Add(ctx, 1), f.Add(t.Context(), 3)
		for v := range 3 {
			f.Send(v + 1)
		}
		end()
		synctest.Wait()
		f.Send(4) // the slow one has ended, the quick one is full
		if v, open := <-slow; v != 1 || !open {
			t.Errorf("the slow one got %d, %t", v, open)
		}
		if v, open := <-slow; open {
			t.Errorf("after its end it got %d", v)
		}
		for want := 1; want <= 3; want++ {
			if v := <-quick; v != want {
				t.Errorf("the quick one got %d, want %d", v, want)
			}
		}
		select {
		case v := <-quick:
			t.Errorf("one too many: %d", v)
		default:
		}
	})
}
