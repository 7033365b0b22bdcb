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
	"github.com/thaw-dev/thaw/loader/source/azure/azuretest"
)

// space is one test's namespace, which is a team.
type space struct {
	*testing.T
	*suite
	ns  string
	key string // API key of the team, where there is one
}

// space makes a namespace for a test; it goes with the test.
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

// team makes another namespace.
func (s *suite) team(t *testing.T, name string) *space {
	t.Helper()
	made, err := s.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-" + name + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sp := &space{T: t, suite: s, ns: made.Name}
	t.Cleanup(func() {
		// The test's context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if t.Failed() {
			sp.told(ctx)
		}
		// Pods go at once: their GPUs are wanted by the next test.
		s.core.CoreV1().Namespaces().Delete(ctx, sp.ns, metav1.DeleteOptions{})
		s.core.CoreV1().Pods(sp.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{})
	})
	sp.withKey()
	return sp
}

// withKey gives the team an API key, and waits until it is known.
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
	// Each activator has to know it.
	for _, p := range s.thawPods("activator") {
		direct := s.through(p)
		s.until("the key is known to "+p.Name, func() (bool, string) {
			a := direct.do(s.Context(), "", "/v1/models", "")
			return a.status == http.StatusOK, a.String()
		})
	}
}

// through is the same space, which asks one activator.
func (s *space) through(p corev1.Pod) *space {
	one, all := *s, *s.suite
	all.gateway = "http://" + p.Status.PodIP + ":8080"
	one.suite = &all
	return &one
}

// told prints what is in the namespace of a test that failed.
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

// logs are the last lines of a container.
func (s *suite) logs(ctx context.Context, ns, pod, container string, lines int64) string {
	b, err := s.core.CoreV1().Pods(ns).GetLogs(pod, &corev1.PodLogOptions{Container: container, TailLines: &lines}).DoRaw(ctx)
	if err != nil {
		return "no logs: " + err.Error()
	}
	return string(b)
}

// weights puts the shipped model into a folder of the account, and returns what a
// model file names it by.
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

// tiny is a model file of the embedded engine; more are lines below spec.
func (s *space) tiny(name string, more ...string) string {
	s.Helper()
	return s.model(name, append([]string{"source: " + s.weights(name), "engine: ember"}, more...)...)
}

// model is a model file with the lines of its spec.
func (s *space) model(name string, spec ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s}\nspec:\n", name)
	for _, line := range spec {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// deploy is thaw deploy --to knative of a model file.
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

// deployed deploys a model and waits until it can be asked for.
func (s *space) deployed(file string, args ...string) {
	s.Helper()
	s.deploy(file, args...)
	_, rest, _ := strings.Cut(file, "metadata: {name: ")
	name, _, _ := strings.Cut(rest, "}")
	s.ready(name)
}

// ready waits for a Knative Service that can be asked for.
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

// until is for what takes seconds on an idle machine: minutes beside ten others.
func (s *space) until(what string, ok func() (bool, string)) {
	s.Helper()
	until(s.T, 3*time.Minute, what, ok)
}

// revision is the newest of a service.
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

// scale is how many pods a revision is meant to have, and how many are ready.
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
		why = fmt.Sprintf("; autoscaler: desired %v, actual %v, active %s %s", field(pa, "status.desiredScale"), field(pa, "status.actualScale"), active, reason)
	}
	return want, ready, fmt.Sprintf("%d wanted, %d ready%s", want, ready, why)
}

func listed(l *unstructured.UnstructuredList) []unstructured.Unstructured {
	if l == nil {
		return nil
	}
	return l.Items
}

// atZero waits until a revision has no pod. Those that drain count for nothing.
func (s *space) atZero(revision string) {
	s.Helper()
	s.until(revision+" at zero", func() (bool, string) {
		want, ready, saw := s.scale(revision)
		return want == 0 && ready == 0, saw
	})
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	took   time.Duration
	first  time.Time // when its first data was there, where that is looked for
	err    error
}

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("%v after %s (%d %.300s)", a.err, a.took.Round(time.Millisecond), a.status, a.body)
	}
	return fmt.Sprintf("%d after %s: %.600s", a.status, a.took.Round(time.Millisecond), a.body)
}

// whole says whether it is a whole answer of a model.
func (a answer) whole() bool {
	return a.err == nil && a.status == http.StatusOK && (strings.Contains(a.body, `"finish_reason":"`) || strings.Contains(a.body, "data: [DONE]"))
}

// code is the code of an error in OpenAI's form.
func (a answer) code() string {
	var e struct {
		Error struct{ Code, Type, Message string }
	}
	if json.Unmarshal([]byte(a.body), &e) != nil {
		return ""
	}
	return cmp.Or(e.Error.Code, e.Error.Type)
}

// client has no connections left over from who is gone.
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

// chat is the body of a request.
func chat(model string, tokens int, stream bool) string {
	return fmt.Sprintf(`{"model": %q, "stream": %v, "max_tokens": %d, "min_tokens": %[3]d, "ignore_eos": true, "messages": [{"role": "user", "content": "What is thaw?"}]}`, model, stream, tokens)
}

// byModel asks as an OpenAI client does, by the model's name.
func (s *space) byModel(name string, tokens int, stream bool) answer {
	return s.do(s.Context(), "", "/v1/chat/completions", chat(s.ns+"/"+name, tokens, stream))
}

// host is the name that Knative gives a service.
func (s *space) host(name string) string { return name + "." + s.ns + "." + s.domain }

// byHost asks the service by its host name.
func (s *space) byHost(name string, tokens int, stream bool) answer {
	return s.do(s.Context(), s.host(name), "/v1/chat/completions", chat(name, tokens, stream))
}

// must fails the test unless the answer is whole.
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

// pods are those of a service that are not on their way out.
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

// events are the texts of what happened to an object of the namespace.
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

// gpu is a line of a model file that asks for some.
func gpu(n int) string { return fmt.Sprintf("resources: {gpus: %d, memory: 64Mi}", n) }
