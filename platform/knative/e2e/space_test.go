package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// space is the namespace of one test, which is a team.
type space struct {
	*testing.T
	*suite
	ns  string
	key string // API key of the team; may be empty
}

// space creates a namespace for a test and deletes it afterwards.
func (s *suite) space(t *testing.T) *space {
	t.Helper()
	base := strings.ToLower(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:])
	return s.team(t, strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, base))
}

// team creates another namespace.
func (s *suite) team(t *testing.T, name string) *space {
	t.Helper()
	made, err := s.core.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-" + name + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sp := &space{T: t, suite: s, ns: made.Name}
	t.Cleanup(func() {
		// The test's context has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if t.Failed() {
			sp.told(ctx)
		}
		// Pods are deleted without grace: the next test needs their GPUs.
		s.core.CoreV1().Namespaces().Delete(ctx, sp.ns, metav1.DeleteOptions{})
		s.core.CoreV1().Pods(sp.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{})
	})
	sp.withKey()
	return sp
}

// withKey creates an API key for the team and waits until activators accept it.
func (s *space) withKey() {
	s.Helper()
	secret := auth.Prefix + rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(secret))
	if _, err := s.core.CoreV1().Secrets(s.ns).Create(s.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "thaw-keys", Namespace: s.ns},
		StringData: map[string]string{"e2e": fmt.Sprintf(`{"name": "e2e", "hash": "%x"}`, sum)},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.key = secret
	// Every activator must accept it.
	for _, p := range s.thawPods("activator") {
		direct := s.through(p)
		s.until("the key is known to "+p.Name, func() (bool, string) {
			a := direct.do(s.Context(), "", "/v1/models", "")
			return a.status == http.StatusOK, a.String()
		})
	}
}

// through returns the same space with requests sent to one activator.
func (s *space) through(p corev1.Pod) *space {
	one, all := *s, *s.suite
	all.gateway = "http://" + p.Status.PodIP + ":8080"
	one.suite = &all
	return &one
}

// told logs the state of the namespace of a failed test.
func (s *space) told(ctx context.Context) {
	for _, kind := range []string{"ksvc", "revision", "pa", "kingress"} {
		list, err := s.of(kind, s.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			s.Logf("%s: %v", kind, err)
			continue
		}
		for i := range list.Items {
			b, _ := json.Marshal(field(&list.Items[i], "status"))
			s.Logf("-- %s %s: %s", kind, list.Items[i].GetName(), b)
		}
	}
	pods, err := s.core.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		s.Logf("pods: %v", err)
		return
	}
	for _, p := range pods.Items {
		b, _ := json.Marshal(p.Status.Conditions)
		s.Logf("-- pod %s: %s %s %s\n%s", p.Name, p.Status.Phase, p.Status.Message, b, s.logs(ctx, s.ns, p.Name, "model", 30))
	}
	events, err := s.core.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for _, e := range events.Items {
		s.Logf("-- event %s %s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
}

// logs returns the last lines of a container's log.
func (s *suite) logs(ctx context.Context, ns, pod, container string, lines int64) string {
	b, err := s.core.CoreV1().Pods(ns).GetLogs(pod, &corev1.PodLogOptions{Container: container, TailLines: &lines}).DoRaw(ctx)
	if err != nil {
		return "no logs: " + err.Error()
	}
	return string(b)
}

// weights puts the embedded model into a folder of the blob server and returns its source
// for a model file.
func (s *space) weights(folder string) string {
	s.Helper()
	folder = s.ns + "/" + folder
	const from = "../../../functions/shipped/tiny"
	files, err := os.ReadDir(from)
	if err != nil {
		s.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err != nil {
			s.Fatal(err)
		}
		s.blobs.Put(folder+"/"+f.Name(), b)
	}
	return azuretest.Location(folder)
}

// tiny returns a model file for the embedded engine; more are lines of its spec.
func (s *space) tiny(name string, more ...string) string {
	s.Helper()
	return s.model(name, append([]string{"source: " + s.weights(name), "engine: ember"}, more...)...)
}

// model returns a model file with the given lines of spec.
func (s *space) model(name string, spec ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s}\nspec:\n", name)
	for _, line := range spec {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// deploy runs thaw deploy --to knative with a model file.
func (s *space) deploy(file string, args ...string) {
	s.Helper()
	at := filepath.Join(s.TempDir(), "m.yaml")
	if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
		s.Fatal(err)
	}
	args = append([]string{"deploy", "--to", "knative", "-f", at, "--namespace", s.ns, "--thaw-image", image}, args...)
	if out, errs, code := s.program(s.Context(), "thaw", args...); code != 0 {
		s.Fatalf("deploy: exit %d\n%s%s", code, out, errs)
	}
}

// deployed deploys a model and waits until it is ready.
func (s *space) deployed(file string, args ...string) {
	s.Helper()
	s.deploy(file, args...)
	_, rest, _ := strings.Cut(file, "metadata: {name: ")
	name, _, _ := strings.Cut(rest, "}")
	s.ready(name)
}

// ready waits until a Knative Service is ready.
func (s *space) ready(name string) {
	s.Helper()
	s.until("Knative Service "+name+" is ready", func() (bool, string) {
		o, err := s.get("ksvc", name)
		if err != nil {
			return false, err.Error()
		}
		status, why := condition(o, "Ready")
		return status == "True" && field(o, "status.observedGeneration") == field(o, "metadata.generation"), why
	})
}

func (s *space) get(kind, name string) (*unstructured.Unstructured, error) {
	return s.of(kind, s.ns).Get(s.Context(), name, metav1.GetOptions{})
}

// until waits minutes for what takes seconds on an idle machine: ten tests run beside it.
func (s *space) until(what string, ok func() (bool, string)) {
	s.Helper()
	until(s.T, 3*time.Minute, what, ok)
}

// revision returns the newest revision of a Service.
func (s *space) revision(name string) string {
	s.Helper()
	var latest string
	s.until("revision of "+name, func() (bool, string) {
		o, err := s.get("ksvc", name)
		if err != nil {
			return false, err.Error()
		}
		latest, _ = field(o, "status.latestCreatedRevisionName").(string)
		return latest != "" && field(o, "status.observedGeneration") == field(o, "metadata.generation"), fmt.Sprint(field(o, "status"))
	})
	return latest
}

// scale returns the wanted and the ready pods of a revision.
func (s *space) scale(revision string) (want, ready int64, saw string) {
	list, err := s.of("deployment", s.ns).List(s.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=" + revision})
	if err != nil || len(list.Items) != 1 {
		return -1, -1, fmt.Sprintf("%d deployments: %v", len(listed(list)), err)
	}
	want, _ = field(&list.Items[0], "spec.replicas").(int64)
	ready, _ = field(&list.Items[0], "status.readyReplicas").(int64)
	why := ""
	if pa, err := s.get("pa", revision); err == nil {
		active, reason := condition(pa, "Active")
		why = fmt.Sprintf("; autoscaler: desired %v, actual %v, active %s %s", field(pa, "status.desiredScale"), field(pa, "status.actualScale"),
			active, reason)
	}
	return want, ready, fmt.Sprintf("%d wanted, %d ready%s", want, ready, why)
}

func listed(l *unstructured.UnstructuredList) []unstructured.Unstructured {
	if l == nil {
		return nil
	}
	return l.Items
}

// atZero waits until a revision has no pod other than draining ones.
func (s *space) atZero(revision string) {
	s.Helper()
	s.until(revision+" at zero", func() (bool, string) {
		want, ready, saw := s.scale(revision)
		return want == 0 && ready == 0, saw
	})
}

// answer is the result of a request.
type answer struct {
	status int
	header http.Header
	body   string
	took   time.Duration
	first  time.Time // when the first data arrived, if measured
	err    error
}

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("%v after %s (%d %.300s)", a.err, a.took.Round(time.Millisecond), a.status, a.body)
	}
	return fmt.Sprintf("%d after %s: %.600s", a.status, a.took.Round(time.Millisecond), a.body)
}

// whole reports whether this is a complete answer of a model.
func (a answer) whole() bool {
	return a.err == nil && a.status == http.StatusOK && (strings.Contains(a.body, `"finish_reason":"`) || strings.Contains(a.body, "data: [DONE]"))
}

// code returns the code of an OpenAI error.
func (a answer) code() string {
	var e struct {
		Error struct{ Code, Type, Message string }
	}
	if json.Unmarshal([]byte(a.body), &e) != nil {
		return ""
	}
	return cmp.Or(e.Error.Code, e.Error.Type)
}

// client keeps no connections, which might lead to activators that have ended.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// do sends one request to thaw's gateway. host may be empty.
func (s *space) do(ctx context.Context, host, path, body string) (a answer) {
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, s.gateway+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.Host = cmp.Or(host, r.URL.Host)
	r.Header.Set("Content-Type", "application/json")
	if s.key != "" {
		r.Header.Set("Authorization", "Bearer "+s.key)
	}
	res, err := client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, body: string(b), err: err}
}

// chat returns the body of a chat request.
func chat(model string, tokens int, stream bool) string {
	return fmt.Sprintf(`{"model": %q, "stream": %v, "max_tokens": %d, "min_tokens": %[3]d, "ignore_eos": true, "messages": [{"role": "user", "content": "What is thaw?"}]}`, model, stream, tokens)
}

// byModel sends a request as an OpenAI client does, by the model's name.
func (s *space) byModel(name string, tokens int, stream bool) answer {
	return s.do(s.Context(), "", "/v1/chat/completions", chat(s.ns+"/"+name, tokens, stream))
}

// host returns the host name that Knative gives a Service.
func (s *space) host(name string) string { return name + "." + s.ns + "." + s.domain }

// byHost sends a request to the Service's host name.
func (s *space) byHost(name string, tokens int, stream bool) answer {
	return s.do(s.Context(), s.host(name), "/v1/chat/completions", chat(name, tokens, stream))
}

// must fails the test unless the answer is complete.
func (s *space) must(what string, a answer) answer {
	s.Helper()
	if !a.whole() {
		s.Fatalf("%s: %s", what, a)
	}
	return a
}

// many runs n requests at once and returns their answers.
func many(n int, ask func(i int) answer) []answer {
	answers := make([]answer, n)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = ask(i) })
	}
	wg.Wait()
	return answers
}

// pods lists the pods of a Service that are not terminating.
func (s *space) pods(name string) []corev1.Pod {
	s.Helper()
	list, err := s.core.CoreV1().Pods(s.ns).List(s.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + name})
	if err != nil {
		s.Fatal(err)
	}
	var live []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			live = append(live, p)
		}
	}
	return live
}

// events returns the messages of the events of an object.
func (s *space) events(kind, name string) string {
	list, err := s.core.CoreV1().Events(s.ns).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == kind && strings.HasPrefix(e.InvolvedObject.Name, name) {
			fmt.Fprintln(&b, e.Reason, e.Message)
		}
	}
	return b.String()
}

// gpu is the line of a model file that requests n GPUs.
func gpu(n int) string { return fmt.Sprintf("resources: {gpus: %d, memory: 64Mi}", n) }
