package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
)

var (
	benchOut    = flag.String("bench-out", "", "folder for the report of TestBench; without it nothing is measured")
	benchCommit = flag.String("bench-commit", "unknown", "what is measured")
	benchStarts = flag.Int("bench-starts", 20, "starts of each kind that are measured")
)

// measured is the result that TestBench writes.
type measured struct {
	report.Provenance
	Wake     *wakes       `json:"wake,omitempty"`
	Warm     *warmCost    `json:"warm,omitempty"`
	Eviction []evicting   `json:"eviction,omitempty"`
	Many     *manyWoken   `json:"many,omitempty"`
	VLLM     *vllmWakes   `json:"vllm,omitempty"`
	Goals    report.Goals `json:"goals,omitempty"`
	parts    []report.Part
}

// bench is one part of the benchmark: its namespace, Knative's own ingress for
// comparison, and the result that it fills in.
type bench struct {
	*space
	theirs string // http://ADDRESS of the cluster's own ingress, for Knative's classes
	into   *measured
}

const aboutBench = "A real cluster of deploy/cluster on this machine alone: Kubernetes, Knative Serving and thaw share its cores with " +
	"what asks. " +
	"\"Knative's\" is the same pod, with the same engine and thaw's shim, under Knative's own autoscaler class and activator, behind the " +
	"ingress class edge of deploy/cluster. Rounds are interleaved. " +
	"While a start is measured no other pod begins or ends, but for the proxies of thaw's former pods: Kubernetes has forgotten those, and " +
	"they drain for half a minute"

// TestBench installs thaw and measures. Parts can be selected:
// make bench-knative RUN=TestBench/wake.
func TestBench(t *testing.T) {
	if *benchOut == "" {
		t.Skip("-bench-out names no folder: make bench-knative")
	}
	s := open(t)
	theirs := os.Getenv("THAW_CLUSTER_INGRESS")
	if theirs == "" {
		t.Fatal("THAW_CLUSTER_INGRESS is not set: make bench-knative")
	}
	s.install(t)
	m := &measured{Provenance: report.NewProvenance("KnativeBench", nil, time.Now())}
	m.Command, m.Commit = "make bench-knative", *benchCommit
	if f := flag.Lookup("test.run"); f != nil && f.Value.String() != "^TestBench$" {
		m.Command += " RUN='" + strings.ReplaceAll(f.Value.String(), "$", "$$") + "'" // make expands $
	}
	m.Command += fmt.Sprintf(" STARTS=%d", *benchStarts)
	for _, part := range []struct {
		name string
		run  func(*bench)
	}{
		{"wake", benchWake},
		{"warm", benchWarm},
		{"evict", benchEvict},
		{"vllm", benchVLLM},
		{"many", benchMany}, // last: its many pods take a while to end
	} {
		t.Run(part.name, func(t *testing.T) { part.run(&bench{s.space(t), strings.TrimSuffix(theirs, "/"), m}) })
	}
	if len(m.parts) > 0 {
		if err := report.Write(*benchOut, "knative", m,
			m.Page("Models as Knative Services", aboutBench, nil, append(m.Goals.Parts(), m.parts...))); err != nil {
			t.Fatal(err)
		}
		for _, p := range append(m.Goals.Parts(), m.parts...) {
			fmt.Printf("%s\n\n", p.Heading)
			p.Table.Text(os.Stdout)
			fmt.Println()
		}
	}
	t.Run("uninstall", func(t *testing.T) { s.uninstall(t) })
}

// apart deploys the same model under Knative's own classes, as another Service. scaling
// are annotations of its autoscaler; without any it scales to zero after the cluster's
// own short windows.
func (b *bench) apart(name, as, file string, scaling map[string]string) {
	b.Helper()
	b.knatives(b.rendered(strings.Replace(file, "metadata: {name: "+name+"}", "metadata: {name: "+as+"}", 1)), as, scaling)
}

// rendered returns the Knative Service that thaw renders from a model file.
func (b *bench) rendered(file string, args ...string) map[string]any {
	b.Helper()
	at := filepath.Join(b.TempDir(), "m.yaml")
	if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
		b.Fatal(err)
	}
	args = append([]string{"deploy", "-f", at, "--namespace", b.ns, "--thaw-image", image, "--dry-run", "-o", "json"}, args...)
	out, errs, code := b.program(b.Context(), "thaw-knative", args...)
	if code != 0 {
		b.Fatal(errs)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		b.Fatal(err)
	}
	return doc
}

// knatives changes a rendered Service to Knative's own classes and creates it.
func (b *bench) knatives(doc map[string]any, as string, scaling map[string]string) {
	b.Helper()
	doc["metadata"].(map[string]any)["annotations"] = map[string]any{knative.IngressAnnotation: "edge.ingress.networking.knative.dev"}
	class := doc["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)["annotations"].(map[string]any)
	class[knative.ClassAnnotation] = "kpa.autoscaling.knative.dev"
	delete(class, retention)
	for k, v := range scaling {
		class[k] = v
	}
	b.post(doc, as)
}

// says reports whether a line of a stream contains generated text or the end.
func says(line []byte) bool {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	var chunk struct {
		Choices []struct {
			Delta        struct{ Content string }
			FinishReason string `json:"finish_reason"`
		}
	}
	if !ok || json.Unmarshal(data, &chunk) != nil {
		return false
	}
	for _, c := range chunk.Choices {
		if c.Delta.Content != "" || c.FinishReason != "" {
			return true
		}
	}
	return false
}

const (
	minScale  = "autoscaling.knative.dev/min-scale"
	retention = "autoscaling.knative.dev/scale-to-zero-pod-retention-period"
)

// post creates a Knative Service and waits until it is ready.
func (b *bench) post(doc map[string]any, as string) {
	b.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := b.core.Discovery().RESTClient().Post().AbsPath("/apis/serving.knative.dev/v1/namespaces", b.ns, "services").
		SetHeader("Content-Type", "application/json").Body(text).DoRaw(b.Context()); err != nil {
		b.Fatalf("%s: %v", as, err)
	}
	b.ready(as)
}

// at sends a request to a Service by its host name at an ingress, over kept connections.
func (b *bench) at(kept *http.Client, ingress, name, body string) answer {
	began := time.Now()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, ingress+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.Host = b.host(name)
	r.Header.Set("Content-Type", "application/json")
	if b.key != "" && ingress == b.gateway {
		r.Header.Set("Authorization", "Bearer "+b.key)
	}
	res, err := kept.Do(r)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer res.Body.Close()
	// During the start the stream has only comments and empty chunks.
	var text bytes.Buffer
	var first time.Time
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadSlice('\n')
		if first.IsZero() && says(line) {
			first = time.Now()
		}
		text.Write(line)
		if err != nil && err != bufio.ErrBufferFull {
			if err == io.EOF {
				err = nil
			}
			return answer{status: res.StatusCode, header: res.Header, body: text.String(), first: first, took: time.Since(began), err: err}
		}
	}
}

func ratio(x float64) string { return fmt.Sprintf("%.2fx", x) }

// leader returns the leading controller's pod and the URL of its API.
func (s *suite) leader(ctx context.Context) (pod, url string, err error) {
	lease, err := s.of("lease", install.Namespace).Get(ctx, "thaw-controller", metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	pod, address, ok := strings.Cut(fmt.Sprint(field(lease, "spec.holderIdentity")), "@")
	if !ok {
		return "", "", fmt.Errorf("the lease is held by %q", pod)
	}
	pod, _, _ = strings.Cut(pod, "_")
	return pod, "http://" + address, nil
}

// readMetrics returns the metrics of a controller at url.
func (s *suite) readMetrics(ctx context.Context, url string) (string, error) {
	secret, err := s.core.CoreV1().Secrets(install.Namespace).Get(ctx, knative.ControlTLSSecret, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+string(secret.Data[knative.MetricsEntry]))
	res, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// warmCost is the processor time of warm requests.
type warmCost struct {
	Requests int                `json:"requests"` // of each kind and path
	Rows     []warmRow          `json:"rows"`
	Ratio    map[string]float64 `json:"ratio"` // thaw's divided by Knative's
}

type warmRow struct {
	Kind    string             `json:"kind"`
	Way     string             `json:"way"`
	Micros  map[string]float64 `json:"cpu_us_per_request"` // by process
	Sum     float64            `json:"cpu_us_per_request_sum"`
	Latency report.Summary     `json:"latency_seconds"`
	Broken  int                `json:"broken"` // incomplete answers through Knative; an incomplete one through thaw ends the bench
}

// benchWarm measures the processor time per request between client and engine. Counted
// are thaw's activators on one side, the ingress edge and Knative's activator on the
// other, and on both sides the pod's queue-proxy, whether requests pass it or not. Not
// counted are the engine, the shim, the controllers and the kernel's share of the
// client.
func benchWarm(b *bench) {
	file := b.tiny("tiny", "scale: {idle: 10m, max: 1}", "args: [--max-num-seqs, \"32\"]")
	b.deployed(file)
	const theirs = "tiny-knative"
	b.apart("tiny", theirs, file, map[string]string{minScale: "1"})
	kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer kept.CloseIdleConnections()
	b.must("a call by thaw", b.at(kept, b.gateway, "tiny", chat("tiny", 1, true)))
	b.must("a call by Knative", b.at(kept, b.theirs, theirs, chat(theirs, 1, true)))

	b.until("Kubernetes knows of both pods", func() (bool, string) {
		ours, other := b.pods("tiny"), b.pods(theirs)
		return len(ours) == 1 && len(other) == 1 && ready(ours[0]) && ready(other[0]), fmt.Sprintf("%d and %d pods", len(ours), len(other))
	})

	const rounds, each, clients = 6, 300, 4
	c := &warmCost{Requests: rounds * each, Ratio: map[string]float64{}}
	t := &report.Table{Head: []string{"processor time per warm request", "thaw", "Knative's", "ratio", "of thaw's", "of Knative's", "Knative's cut short"}}
	for _, kind := range []struct {
		name   string
		tokens int
		stream bool
	}{{"one token", 1, false}, {"stream of 16 tokens", 16, true}} {
		rows := [2]warmRow{{Kind: kind.name, Way: "thaw", Micros: map[string]float64{}}, {Kind: kind.name, Way: "knative", Micros: map[string]float64{}}}
		var took [2][]float64
		for round := range rounds {
			for _, who := range []int{round % 2, 1 - round%2} {
				ingress, name := b.gateway, "tiny"
				if who == 1 {
					ingress, name = b.theirs, theirs
				}
				meters := b.meters(who == 0, name)
				before := read(b, meters)
				var mu sync.Mutex
				for _, a := range many(clients, func(int) answer {
					for range each / clients {
						a := b.at(kept, ingress, name, chat(name, kind.tokens, kind.stream))
						mu.Lock()
						took[who] = append(took[who], a.took.Seconds())
						if !a.whole() {
							rows[who].Broken++
						}
						mu.Unlock()
						if who == 0 && !a.whole() {
							return a
						}
					}
					return answer{}
				}) {
					if a.err != nil || a.status != 0 {
						b.Fatalf("a warm call of %s: %s", rows[who].Way, a)
					}
				}
				for name, now := range read(b, meters) {
					rows[who].Micros[name] += float64(now-before[name]) / 1e3 / float64(c.Requests)
				}
			}
		}
		detail := [2]string{}
		for i := range rows {
			for _, name := range slices.Sorted(mapKeys(rows[i].Micros)) {
				rows[i].Sum += rows[i].Micros[name]
				detail[i] += fmt.Sprintf("%s %.0f µs, ", name, rows[i].Micros[name])
			}
			rows[i].Latency = report.Summarize(took[i])
			c.Rows = append(c.Rows, rows[i])
		}
		r := rows[0].Sum / rows[1].Sum
		c.Ratio[kind.name] = r
		t.Add(kind.name, fmt.Sprintf("%.0f µs", rows[0].Sum), fmt.Sprintf("%.0f µs", rows[1].Sum), ratio(r), strings.TrimSuffix(detail[0], ", "),
			strings.TrimSuffix(detail[1], ", "), fmt.Sprintf("%d of %d", rows[1].Broken, c.Requests))
		b.into.Goals.Add(r <= 0.7, "processor time of a warm request, "+kind.name+", to Knative's", "at most 0.7x", ratio(r))
	}
	b.into.Warm = c
	b.into.parts = append(b.into.parts, report.Part{Heading: "Warm requests", Table: t})
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// meter reads processor time in nanoseconds.
type meter struct {
	name string
	read func() (int64, error)
}

// meters lists the processes between the client and a Service's engine.
func (b *bench) meters(ours bool, name string) []meter {
	b.Helper()
	var list []meter
	add := func(what, ns, pod, uid, container string, statuses []corev1.ContainerStatus) {
		for _, st := range statuses {
			if st.Name == container {
				id := st.ContainerID[strings.LastIndexByte(st.ContainerID, '/')+1:]
				list = append(list, meter{what, func() (int64, error) { return groupTime(uid, id) }})
				return
			}
		}
		b.Fatalf("%s/%s has no container %s", ns, pod, container)
	}
	if ours {
		for _, p := range b.thawPods("activator") {
			add("activator", p.Namespace, p.Name, string(p.UID), p.Spec.Containers[0].Name, p.Status.ContainerStatuses)
		}
	} else {
		edge := processNamed(b.space, "edge")
		list = append(list, meter{"edge", func() (int64, error) { return processTime(edge) }})
		pods, err := b.core.CoreV1().Pods("knative-serving").List(b.Context(), metav1.ListOptions{LabelSelector: "app=activator"})
		if err != nil || len(pods.Items) == 0 {
			b.Fatalf("Knative's activator: %v", err)
		}
		for _, p := range pods.Items {
			add("activator", p.Namespace, p.Name, string(p.UID), "activator", p.Status.ContainerStatuses)
		}
	}
	pods := b.pods(name)
	if len(pods) != 1 {
		b.Fatalf("%d pods of %s", len(pods), name)
	}
	add("queue-proxy", b.ns, pods[0].Name, string(pods[0].UID), "queue-proxy", pods[0].Status.ContainerStatuses)
	return list
}

func read(b *bench, meters []meter) map[string]int64 {
	b.Helper()
	sum := map[string]int64{}
	for _, m := range meters {
		ns, err := m.read()
		if err != nil {
			b.Fatalf("%s: %v", m.name, err)
		}
		sum[m.name] += ns
	}
	return sum
}

// group returns the path of a container's control group, of version 1 or 2.
func group(controller, uid, id string) (string, error) {
	for _, top := range []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup"} {
		found, _ := filepath.Glob(top + "/thaw-cluster*/kubepods*/*/*" + uid + "*/" + id)
		more, _ := filepath.Glob(top + "/thaw-cluster*/kubepods*/*" + uid + "*/" + id)
		if found = append(found, more...); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("no control group of container %s", id)
}

// groupTime returns the processor time of a container.
func groupTime(uid, id string) (int64, error) {
	dir, err := group("cpuacct", uid, id)
	if err != nil {
		return 0, err
	}
	if b, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")); err == nil {
		return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	}
	micros, err := groupField(dir, "cpu.stat", "usage_usec")
	return micros * 1000, err
}

func groupField(dir, file, name string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// processTime returns the processor time of a process: the sum of what the scheduler
// counted for its threads.
func processTime(pid int) (int64, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has gone", pid)
	}
	var sum int64
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has just ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(b), &ns); err != nil {
			return 0, err
		}
		sum += ns
	}
	return sum, nil
}

func processNamed(s *space, name string) int {
	s.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == name {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	s.Fatalf("no process %s", name)
	return 0
}

// evicting is one call that evicted another model.
type evicting struct {
	Model     string  `json:"model"`
	Evicted   string  `json:"evicted"`
	Scheduled float64 `json:"decision_to_scheduled_seconds"`
	Drain     float64 `json:"drain_seconds"`
	Beyond    float64 `json:"beyond_drain_seconds"`
	Decided   float64 `json:"call_to_decision_seconds"`
	Answered  float64 `json:"answered_seconds"`
}

// benchEvict calls three models in turn on two GPUs. The time of the decision is the old
// pod's deletion timestamp as watched; the result is the time from the old pod's end to
// the scheduling of the new one.
func benchEvict(b *bench) {
	names := []string{"a", "b", "c"}
	for _, name := range names {
		b.deployed(b.tiny(name, gpu(1), "scale: {idle: 10m}", "deadlines: {drain: 5s}"))
	}
	w, err := b.watching.CoreV1().Pods(b.ns).Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	type life struct{ model, phase string }
	seen := map[life]time.Time{} // latest occurrence
	starved := 0
	refused := map[string]string{} // pods that the node refused after scheduling, and why
	var mu sync.Mutex
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			mu.Lock()
			model := p.Labels[knative.ModelLabel]
			mark := func(phase string) {
				if k := (life{model + " " + p.Name, phase}); seen[k].IsZero() {
					seen[k] = time.Now()
				}
			}
			if p.DeletionTimestamp != nil {
				mark("told")
			}
			if e.Type == "DELETED" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				mark("gone")
			}
			if p.Spec.NodeName != "" {
				mark("scheduled")
			}
			if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" {
				refused[p.Name] = p.Status.Reason + ": " + p.Status.Message
			}
			mu.Unlock()
		}
	}()
	ended := b.pending()
	newest := func(model, phase string) (at time.Time, pod string) {
		mu.Lock()
		defer mu.Unlock()
		for k, t := range seen {
			if strings.HasPrefix(k.model, model+" ") && k.phase == phase && t.After(at) {
				at, pod = t, k.model
			}
		}
		return at, pod
	}
	warm := []string{}
	for i := range *benchStarts {
		name := names[i%3]
		began := time.Now()
		a := b.must("a call of "+name, b.byModel(name, 1, false))
		if warm = append(warm, name); len(warm) <= gpus {
			continue
		}
		old := warm[0]
		warm = warm[1:]
		b.atZero(b.revision(old))
		var told, free time.Time
		until(b.T, time.Minute, "the end of "+old, func() (bool, string) {
			told, _ = newest(old, "told")
			free, _ = newest(old, "gone")
			return told.After(began) && free.After(began), fmt.Sprintf("told to go %s, gone %s", told, free)
		})
		scheduled, _ := newest(name, "scheduled")
		x := evicting{Model: name, Evicted: old, Scheduled: scheduled.Sub(told).Seconds(), Drain: free.Sub(told).Seconds(),
			Decided: told.Sub(began).Seconds(), Answered: a.took.Seconds()}
		x.Beyond = math.Max(0, x.Scheduled-x.Drain)
		b.into.Eviction = append(b.into.Eviction, x)
		b.Logf("%+v", x)
	}
	for _, bad := range ended() {
		starved++
		b.Logf("a pod waits for a GPU without an eviction: %s", bad)
	}
	w.Stop()
	<-done
	for name, why := range refused {
		b.Logf("the node refused %s: %s", name, why)
	}
	var beyond, drain, decided, answered []float64
	for _, x := range b.into.Eviction {
		beyond, drain, decided, answered = append(beyond, x.Beyond), append(drain, x.Drain), append(decided, x.Decided),
			append(answered, x.Answered)
	}
	t := &report.Table{Head: []string{fmt.Sprintf("%d evictions", len(beyond)), "p50", "worst"}}
	for _, row := range []struct {
		name string
		of   []float64
	}{
		{"call to decision (a model that was missed right after its eviction is left its GPU for a while)", decided},
		{"the old pod's drain", drain}, {"from its end to the new pod scheduled", beyond}, {"call to answer", answered},
	} {
		s := report.Summarize(row.of)
		t.Add(row.name, report.Millis(s.P50), report.Millis(s.Max))
	}
	t.Add("pods that the node refused after they were scheduled", fmt.Sprint(len(refused)), "")
	b.into.parts = append(b.into.parts, report.Part{Heading: "Eviction: two GPUs, three models, called in turn", Table: t})
	worst := report.Summarize(beyond).Max
	b.into.Goals.Add(worst < 2, "eviction to the new pod scheduled, beyond the old one's drain, worst", "under 2 s", report.Millis(worst))
	b.into.Goals.Add(starved == 0, "pods that waited for a GPU without an eviction", "none", fmt.Sprint(starved))
}

// manyWoken is the result of waking many idle Services at once.
type manyWoken struct {
	Services    int            `json:"services"`
	Woken       int            `json:"woken"`
	Deployed    float64        `json:"deployed_seconds"` // until the last was ready
	Answered    int            `json:"answered"`
	AllAnswered float64        `json:"all_answered_seconds"` // since the first request
	Deepest     int            `json:"queue_most"`
	QueueBusy   float64        `json:"queue_busy_seconds"` // longest time in which the queue was never empty
	Answers     report.Summary `json:"answer_seconds"`
	Memory      int64          `json:"controller_peak_bytes"`
}

// benchMany deploys 200 Services at zero and wakes 50 of them within one second.
func benchMany(b *bench) {
	const services, woken = 200, 50
	source := b.weights("tiny")
	var files strings.Builder
	for i := range services {
		if i > 0 {
			files.WriteString("---\n")
		}
		files.WriteString(b.model(fmt.Sprintf("m%d", i), "source: "+source, "engine: ember", "scale: {idle: 1m}", "resources: {memory: 64Mi}"))
	}
	m := &manyWoken{Services: services, Woken: woken}
	began := time.Now()
	b.deploy(files.String(), "--timeout", "10m")
	until(b.T, 10*time.Minute, "all are ready", func() (bool, string) {
		list, err := b.of("ksvc", b.ns).List(b.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		n := 0
		for i := range list.Items {
			if status, _ := condition(&list.Items[i], "Ready"); status == "True" {
				n++
			}
		}
		return n == services, fmt.Sprintf("%d of %d", n, len(list.Items))
	})
	m.Deployed = time.Since(began).Seconds()
	pod, url, err := b.leader(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	peak := func() {
		p, err := b.core.CoreV1().Pods(install.Namespace).Get(b.Context(), pod, metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		used, err := memory(p)
		if err != nil {
			b.Fatal(err)
		}
		m.Memory = max(m.Memory, used)
	}
	peak()
	began = time.Now()
	tick := time.NewTicker(time.Second / woken)
	defer tick.Stop()
	// This client waits longer than the 2 minutes of other tests: 50 pods start on few cores,
	// as many at a time as the node has room for.
	patient := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 8 * time.Minute}
	answers := make(chan answer, woken)
	var took []float64
	ask := func(i int) {
		name := fmt.Sprintf("m%d", i)
		answers <- b.at(patient, b.gateway, name, chat(name, 1, false))
	}
	go func() {
		for i := range woken {
			go ask(i)
			<-tick.C
		}
	}()
	// The queue's depth is polled until all are answered; the result is the longest time in
	// which it was never empty.
	look := time.NewTicker(250 * time.Millisecond)
	defer look.Stop()
	empty := time.Now()
	for n := 0; n < woken; {
		select {
		case a := <-answers:
			n++
			if a.whole() {
				m.Answered++
				took = append(took, a.took.Seconds())
			} else {
				b.Logf("not answered: %s", a)
			}
		case <-look.C:
			peak()
			depth, saw := queued(b, url)
			if depth < 0 {
				b.Fatal(saw)
			}
			m.Deepest = max(m.Deepest, depth)
			m.QueueBusy = max(m.QueueBusy, time.Since(empty).Seconds())
			if depth == 0 {
				empty = time.Now()
			}
		}
	}
	m.AllAnswered = time.Since(began).Seconds()
	m.Answers = report.Summarize(took)
	peak()
	b.into.Many = m
	t := &report.Table{Head: []string{fmt.Sprintf("%d services at zero, %d woken in one second", services, woken), ""}}
	t.Add("deployed, until the last was ready", report.Millis(m.Deployed))
	t.Add("answered", fmt.Sprintf("%d of %d", m.Answered, woken))
	t.Add("answer after its request, p50", report.Millis(m.Answers.P50))
	t.Add("the last answer, after the first request", report.Millis(m.AllAnswered))
	t.Add("objects in the reconcile queue, at most", fmt.Sprint(m.Deepest))
	t.Add("longest time that it was not seen empty", report.Millis(m.QueueBusy))
	t.Add("memory of the controller that leads, at most", fmt.Sprintf("%d MiB", m.Memory>>20))
	b.into.parts = append(b.into.parts, report.Part{Heading: "Many at once", Table: t})
	b.into.Goals.Add(m.Answered == woken, "answered of 50 woken in one second", "all", fmt.Sprintf("%d of %d", m.Answered, woken))
	b.into.Goals.Add(m.QueueBusy < 10, "reconcile queue empty again", "within 10 s", report.Millis(m.QueueBusy))
	b.into.Goals.Add(m.Memory < 200<<20, "controller's memory with 200 services", "under 200 MiB", fmt.Sprintf("%d MiB", m.Memory>>20))
}

// memory returns the memory of a pod's first container without its page cache.
func memory(p *corev1.Pod) (int64, error) {
	for _, st := range p.Status.ContainerStatuses {
		if st.Name != p.Spec.Containers[0].Name {
			continue
		}
		dir, err := group("memory", string(p.UID), st.ContainerID[strings.LastIndexByte(st.ContainerID, '/')+1:])
		if err != nil {
			return 0, err
		}
		if n, err := groupField(dir, "memory.stat", "total_rss"); err == nil {
			return n, nil
		}
		return groupField(dir, "memory.stat", "anon")
	}
	return 0, fmt.Errorf("%s has no running container", p.Name)
}

// queued returns the length of the controller's work queue.
func queued(b *bench, url string) (depth int, saw string) {
	text, err := b.readMetrics(b.Context(), url)
	if err != nil {
		return -1, err.Error()
	}
	found := false
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "thaw_reconcile_queue") {
			continue
		}
		fields := strings.Fields(line)
		n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err == nil {
			found = true
			depth += int(n)
			saw += line
		}
	}
	if !found {
		return -1, "no thaw_reconcile_queue among the metrics"
	}
	return depth, saw
}
