package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// wakes are the results of cold requests.
type wakes struct {
	Thaw    report.Summary `json:"thaw"`
	Knative report.Summary `json:"knative"`
	P50     float64        `json:"p50_ratio"`
	Worst   float64        `json:"worst_ratio"`

	// Phases of thaw's starts, counted from the shim's READY.
	Release report.Summary `json:"ready_to_request"` // until the shim forwards the held request to the engine
	Engine  report.Summary `json:"request_to_engine"`
	Client  report.Summary `json:"ready_to_client"`
	ByHand  report.Summary `json:"by_hand"` // the same request sent directly to the pod, until its first data

	Rounds []wakeRound `json:"rounds"`
}

// wakeRound is one start by thaw and one by Knative, in seconds.
type wakeRound struct {
	Thaw    float64 `json:"thaw"`
	Knative float64 `json:"knative"`
	Release float64 `json:"ready_to_request"`
	Engine  float64 `json:"request_to_engine"`
	Client  float64 `json:"ready_to_client"`
	ByHand  float64 `json:"by_hand"`
}

const (
	// twins is the number of Knative's Services, used in turn: a terminating pod of Knative
	// takes another half minute, and no pod may end during a measured start.
	twins = 7
	// resting is how long a twin's pod is retained after its request: until all twins have
	// been used.
	resting = 55 * time.Second
)

// benchWake measures starts from zero to one, and from READY to the first byte. No other
// pod starts or ends during a measured start; used twins are idle. Only the proxies of
// thaw's force-deleted pods, which calm cannot see, drain for half a minute beside the
// starts of both.
func benchWake(b *bench) {
	// Both use the same pod. It requests CPU as a real one does: without a request it would
	// have a twelfth of its own queue-proxy's CPU weight. All twins fit on a node of two
	// CPUs.
	const small = "resources: {cpu: 40m, memory: 64Mi}"
	file := b.tiny("tiny", "scale: {idle: 2s}", small)
	b.deployed(file)
	ours := b.revision("tiny")
	var theirs, revisions []string
	for i := range min(twins, *benchStarts) + 1 { // the first is for the start that is not counted
		name := fmt.Sprintf("tiny-knative-%d", i)
		b.apart("tiny", name, file, map[string]string{retention: resting.String()})
		theirs, revisions = append(theirs, name), append(revisions, b.revision(name))
	}
	began := time.Now()
	w := &wakes{}
	// The first start of each is not counted: it stages weights and unpacks images.
	b.wakeBoth(ours, theirs[0], 0)
	for i := range *benchStarts {
		turn := 1 + i%(len(theirs)-1)
		if turn == 1 && i > 0 {
			for _, r := range revisions {
				b.empty(r)
			}
		}
		r := b.wakeBoth(ours, theirs[turn], i)
		b.Logf("start %d: %+v", i+1, r)
		w.Rounds = append(w.Rounds, r)
	}
	b.Logf("%d starts of each in %s", len(w.Rounds), time.Since(began).Round(time.Second))
	of := func(f func(wakeRound) float64) report.Summary {
		var list []float64
		for _, r := range w.Rounds {
			list = append(list, f(r))
		}
		return report.Summarize(list)
	}
	w.Thaw, w.Knative = of(func(r wakeRound) float64 { return r.Thaw }), of(func(r wakeRound) float64 { return r.Knative })
	w.Release, w.Engine = of(func(r wakeRound) float64 { return r.Release }), of(func(r wakeRound) float64 { return r.Engine })
	w.Client, w.ByHand = of(func(r wakeRound) float64 { return r.Client }), of(func(r wakeRound) float64 { return r.ByHand })
	w.P50, w.Worst = w.Thaw.P50/w.Knative.P50, w.Thaw.Max/w.Knative.Max
	b.into.Wake = w

	table := func(heading, head string, rows ...row) {
		t := &report.Table{Head: []string{head, "p50", "p90", "worst"}}
		for _, x := range rows {
			t.Add(x.name, report.Millis(x.of.P50), report.Millis(x.of.P90), report.Millis(x.of.Max))
		}
		if heading == wakeHeading {
			t.Add("ratio", ratio(w.P50), ratio(w.Thaw.P90/w.Knative.P90), ratio(w.Worst))
		}
		b.into.parts = append(b.into.parts, report.Part{Heading: heading, Table: t})
	}
	table(wakeHeading, fmt.Sprintf("from the request to the first token, %d starts each", len(w.Rounds)), row{"thaw's classes", w.Thaw},
		row{"Knative's", w.Knative})
	table("From READY to the first byte, of thaw's starts", "after the shim's READY",
		row{"the held request goes on from the pod's door to the engine (the shim's clock)", w.Release},
		row{"… and the engine took for its first bytes", w.Engine},
		row{"the client has the first token, all told (both clocks are this machine's)", w.Client},
		row{"… of it, outside the engine", of(func(r wakeRound) float64 { return r.Client - r.Engine })},
		row{"for comparison: the same request by hand to the same pod, once it is warm", w.ByHand})
	b.into.Goals.Add(w.P50 <= 0.8, "zero to one, p50 to Knative's", "at most 0.8x", ratio(w.P50))
	b.into.Goals.Add(w.Worst <= 1, "zero to one, worst to Knative's", "at most 1.0x", ratio(w.Worst))
	// Two readings of one goal: when the request leaves thaw, and when its client sees a token.
	b.into.Goals.Add(w.Release.P90 < 0.005, fmt.Sprintf("READY to the held request out of the shim, p90 of %d", w.Release.N), "under 5 ms",
		report.Millis(w.Release.P90))
	b.into.Goals.Add(w.Client.P90 < 0.005, fmt.Sprintf("READY to the client's first token, p90 of %d", w.Client.N), "under 5 ms",
		report.Millis(w.Client.P90))
}

const wakeHeading = "Zero to one"

type row struct {
	name string
	of   report.Summary
}

// wakeBoth sends one cold request to each, in turn.
func (b *bench) wakeBoth(ours, theirs string, i int) (r wakeRound) {
	b.Helper()
	for _, who := range []int{i % 2, 1 - i%2} {
		b.empty(ours)
		b.calm()
		if who == 1 {
			r.Knative = b.must("a cold call by Knative", b.at(client, b.theirs, theirs, chat(theirs, 1, true))).took.Seconds()
			continue
		}
		a := b.must("a cold call by thaw", b.at(client, b.gateway, "tiny", chat("tiny", 1, true)))
		r.Thaw = a.took.Seconds()
		pod, t := b.shim("tiny")
		ready := t.Began.Add(time.Duration(t.Total * float64(time.Second)))
		r.Client = a.first.Sub(ready).Seconds()
		parts := map[string]float64{}
		for _, p := range t.Phases[len(t.Phases)-1].Parts {
			parts[p.Name] = p.Duration
		}
		if len(parts) != 2 {
			b.Fatalf("the shim does not tell of its first request: %+v", t.Phases)
		}
		r.Release, r.Engine = parts["release"], parts["engine"]
		began := time.Now()
		r.ByHand = b.must("a call by hand", b.at(client, pod, "tiny", chat("tiny", 1, true))).first.Sub(began).Seconds()
	}
	return r
}

// shim returns the URL of a Service's only pod and the timeline of its start.
func (b *bench) shim(name string) (url string, t functions.Timeline) {
	b.Helper()
	pods := b.pods(name)
	if len(pods) != 1 {
		b.Fatalf("%d pods", len(pods))
	}
	b.until("the shim tells of its start", func() (bool, string) {
		p, err := b.core.CoreV1().Pods(b.ns).Get(b.Context(), pods[0].Name, metav1.GetOptions{})
		if err != nil || p.Status.PodIP == "" {
			return false, fmt.Sprint("no address: ", err)
		}
		url = "http://" + p.Status.PodIP + ":8080"
		direct := *b.suite
		direct.gateway = url
		said := (&space{T: b.T, suite: &direct, ns: b.ns}).do(b.Context(), "", "/timeline", "")
		err = json.Unmarshal([]byte(said.body), &t)
		return err == nil && t.State == functions.Ready && len(t.Phases) > 0, said.String()
	})
	return url, t
}

// empty waits until a revision has no pod at all: draining pods use the same cores.
func (b *bench) empty(revision string) {
	b.Helper()
	until(b.T, 3*time.Minute, revision+" has no pods", func() (bool, string) {
		want, _, saw := b.scale(revision)
		pods, err := b.core.CoreV1().Pods(b.ns).List(b.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=" + revision})
		if err != nil {
			return false, err.Error()
		}
		return want == 0 && len(pods.Items) == 0, fmt.Sprintf("%d pods, %s", len(pods.Items), saw)
	})
}

// calm waits until no pod of the namespace starts or ends and the processors are nearly
// idle. That moment may not come on a shared machine; then the start is measured
// anyway.
func (b *bench) calm() {
	b.Helper()
	until(b.T, 3*time.Minute, "no pod begins or ends", func() (bool, string) {
		pods, err := b.core.CoreV1().Pods(b.ns).List(b.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, p := range pods.Items {
			if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || !ready(p) {
				return false, fmt.Sprintf("%s: %s, to end since %v", p.Name, p.Status.Phase, p.DeletionTimestamp)
			}
		}
		return true, ""
	})
	for range 20 {
		idle, all := processors()
		select {
		case <-time.After(100 * time.Millisecond):
		case <-b.Context().Done():
			return
		}
		if i, a := processors(); float64(i-idle) > 0.8*float64(a-all) {
			return
		}
	}
}

// processors returns the machine's idle ticks and the total of ticks.
func processors() (idle, all int64) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	var n [8]int64
	fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7])
	for _, x := range n {
		all += x
	}
	return n[3] + n[4], all
}
