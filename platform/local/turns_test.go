//go:build linux

package local

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/testkit"
)

// TestTurnsOfBusyModels: of two models that are never idle and share one GPU each gets its
// turns, each as long as a time slice, and no request fails. The engines are processes; the
// time slice is that of minutes made short.
func TestTurnsOfBusyModels(t *testing.T) {
	if testing.Short() {
		t.Skip("real processes in real time")
	}
	t.Parallel()
	const slice = 2 * time.Second
	policy := placement.DefaultPolicy
	policy.TimeSlice, policy.Patience, policy.TimeSliceDrain = slice, 500*time.Millisecond, 10*time.Second
	s := &stage{t: t}
	s.c = serverConfig{Addr: freeAddr(t), Data: t.TempDir(), GPUs: 1, Memory: 1 << 30, Orphan: 3 * time.Second, Policy: policy}
	s.menu = &menu{}
	for _, name := range []string{"x", "y"} {
		s.menu.models = append(s.menu.models, model(t, name, func(spec *functions.ModelSpec) {
			spec.Resources.GPUs = 1
			spec.Scale.Target = 2
		}, "takes=100ms"))
	}
	s.begin()
	defer s.stop()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var over atomic.Bool
	var all sync.WaitGroup
	defer all.Wait()
	defer over.Store(true)
	for i := range 8 {
		name := []string{"x", "y"}[i%2]
		all.Go(func() {
			for !over.Load() {
				res, err := client.Post("http://"+s.c.Addr+"/v1/completions", "application/json", strings.NewReader(`{"model":"`+name+`","prompt":"hi","max_tokens":1}`))
				if err != nil {
					t.Error(err)
					return
				}
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != 200 || !bytes.Contains(b, []byte(`"model":"`+name+`"`)) {
					t.Errorf("%s: %d %s", name, res.StatusCode, b)
					return
				}
			}
		})
	}
	testkit.Eventually(t, "each model has had two turns, and time slices have ended three", func() (bool, string) {
		turns := map[string]int{}
		for _, e := range s.srv.Events(0) {
			if e.Kind == "ready" || e.Kind == "stop" && e.Reason == "time_slice" {
				turns[e.Function+" "+e.Kind]++
			}
		}
		return turns["default/x ready"] >= 2 && turns["default/y ready"] >= 2 &&
			turns["default/x stop"]+turns["default/y stop"] >= 3, fmt.Sprint(turns)
	})
	over.Store(true)
	all.Wait()
	began, last := map[string]time.Time{}, ""
	for _, e := range s.srv.Events(0) {
		switch {
		case e.Kind == "ready":
			if e.Function == last {
				t.Errorf("%s has two turns in a row", last)
			}
			last, began[e.Replica] = e.Function, e.At
		case e.Kind == "stop" && e.Reason == "time_slice":
			if took := e.At.Sub(began[e.Replica]); took < slice-100*time.Millisecond {
				t.Errorf("the turn of %s ended after %v", e.Function, took)
			}
		}
	}
}
