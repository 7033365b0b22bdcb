package schedulerhint

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"

	"github.com/thaw-dev/thaw/platform/mtls"
)

func hints(namespace, revision, uid string) (string, bool) {
	if namespace == "a" && revision == "llama-00001" && uid == "5b0e" {
		return "gpu1", true
	}
	return "", false
}

func review(t testing.TB, namespace, operation, resource string, pod any) []byte {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: "7", Namespace: namespace, Operation: admissionv1.Operation(operation),
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: resource}, Object: runtime.RawExtension{Raw: raw},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pod(revision string, affinity *corev1.Affinity) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"thaw.dev/model": "llama"}}, Spec: corev1.PodSpec{Affinity: affinity}}
	if revision != "" {
		p.Labels["serving.knative.dev/revision"], p.Labels["serving.knative.dev/revisionUID"] = revision, "5b0e"
	}
	return p
}

const (
	theTerm = `{"weight":100,"preference":{"matchFields":[{"key":"metadata.name","operator":"In","values":["gpu1"]}]}}`
	theList = `{"preferredDuringSchedulingIgnoredDuringExecution":[` + theTerm + `]}`
)

func TestAdmit(t *testing.T) {
	other := corev1.PreferredSchedulingTerm{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: "Exists"}}}}
	bound := pod("llama-00001", nil)
	bound.Spec.NodeName = "gpu2"
	guessed, nameless := pod("llama-00001", nil), pod("llama-00001", nil)
	guessed.Labels["serving.knative.dev/revisionUID"] = "5b0f"
	delete(nameless.Labels, "serving.knative.dev/revisionUID")
	for name, c := range map[string]struct {
		namespace, operation, resource string
		pod                            any
		patch                          string
	}{
		"no affinity":         {"a", "CREATE", "pods", pod("llama-00001", nil), `[{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":` + theList + `}}]`},
		"affinity of pods":    {"a", "CREATE", "pods", pod("llama-00001", &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}), `[{"op":"add","path":"/spec/affinity/nodeAffinity","value":` + theList + `}]`},
		"required only":       {"a", "CREATE", "pods", pod("llama-00001", &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}), `[{"op":"add","path":"/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution","value":[` + theTerm + `]}]`},
		"one more preference": {"a", "CREATE", "pods", pod("llama-00001", &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{other}}}), `[{"op":"add","path":"/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/-","value":` + theTerm + `}]`},
		"another namespace":   {"b", "CREATE", "pods", pod("llama-00001", nil), ""},
		"another revision":    {"a", "CREATE", "pods", pod("llama-00002", nil), ""},
		"no revision":         {"a", "CREATE", "pods", pod("", nil), ""},
		"another uid":         {"a", "CREATE", "pods", guessed, ""},
		"no uid":              {"a", "CREATE", "pods", nameless, ""},
		"already on a node":   {"a", "CREATE", "pods", bound, ""},
		"an update":           {"a", "UPDATE", "pods", pod("llama-00001", nil), ""},
		"no pod":              {"a", "CREATE", "services", pod("llama-00001", nil), ""},
		"nonsense":            {"a", "CREATE", "pods", []int{1}, ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(review(t, c.namespace, c.operation, c.resource, c.pod)))
		r.Header.Set("Content-Type", "application/json")
		reviewHandler(hints).ServeHTTP(w, r)
		var out admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK || out.Kind != "AdmissionReview" ||
			out.APIVersion != "admission.k8s.io/v1" {
			t.Fatalf("%s: %d %s", name, w.Code, w.Body)
		}
		if out.Response == nil || !out.Response.Allowed || out.Response.UID != "7" || string(out.Response.Patch) != c.patch ||
			(c.patch != "") != (out.Response.PatchType != nil) {
			t.Errorf("%s: %s\n%s\nwant %s", name, w.Body, out.Response.Patch, c.patch)
		}
	}
}

func TestAdmitRefuses(t *testing.T) {
	good := review(t, "a", "CREATE", "pods", pod("llama-00001", nil))
	for name, c := range map[string]struct {
		method, path, kind string
		body               []byte
		status             int
	}{
		"another path":      {"POST", "/", "application/json", good, 404},
		"GET":               {"GET", path, "application/json", nil, 405},
		"a form":            {"POST", path, "application/x-www-form-urlencoded", good, 415},
		"no type":           {"POST", path, "", good, 415},
		"nothing":           {"POST", path, "application/json", nil, 400},
		"no review":         {"POST", path, "application/json", []byte(`{"kind":"AdmissionReview"}`), 400},
		"not even JSON":     {"POST", path, "application/json", []byte("{"), 400},
		"more than a pod":   {"POST", path, "application/json", append([]byte(`{"request":{"uid":"`), bytes.Repeat([]byte("x"), maxReviewBytes)...), 413},
		"with a char set":   {"POST", path, "application/json; charset=utf-8", good, 200},
		"a list of reviews": {"POST", path, "application/json", []byte("[]"), 400},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(c.method, c.path, bytes.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		reviewHandler(hints).ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.status)
		}
	}
}

// registered is a cluster with the objects of an installation.
func registered() *fake.Clientset {
	return fake.NewClientset(
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "thaw-system", Name: Name, UID: "s1"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}},
		&registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: Name}, Webhooks: []registrationv1.MutatingWebhook{{
			Name:         "scheduler-hint.thaw.dev",
			ClientConfig: registrationv1.WebhookClientConfig{Service: &registrationv1.ServiceReference{Namespace: "thaw-system", Name: Name}},
		}}},
	)
}

func options(c *fake.Clientset) Options {
	return Options{Client: c, Namespace: "thaw-system", Address: "127.0.0.1:0", Advertise: "10.1.2.3", Hint: hints,
		Log: slog.New(slog.DiscardHandler)}
}

// ask calls the webhook as an API server does: it takes the port from the slice and trusts
// only the registered authorities.
func ask(t *testing.T, c *fake.Clientset) (*tls.ConnectionState, []byte, error) {
	t.Helper()
	slice, err := c.DiscoveryV1().EndpointSlices("thaw-system").Get(t.Context(), Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	in, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(in.Webhooks[0].ClientConfig.CABundle) {
		return nil, nil, errors.New("no authority yet")
	}
	if len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "10.1.2.3" || *slice.Ports[0].Name != "https" ||
		slice.OwnerReferences[0].UID != "s1" || slice.AddressType != discoveryv1.AddressTypeIPv4 {
		return nil, nil, errors.New("the slice leads elsewhere")
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: Name + ".thaw-system.svc"}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(*slice.Ports[0].Port)}).String())
		},
	}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Post("https://"+Name+".thaw-system.svc"+path, "application/json",
		bytes.NewReader(review(t, "a", "CREATE", "pods", pod("llama-00001", nil))))
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.TLS, b, err
}

// trust makes the registration trust the Secret's authority, as an administrator does.
func trust(t *testing.T, c *fake.Clientset) {
	t.Helper()
	secret, err := c.CoreV1().Secrets("thaw-system").Get(t.Context(), SecretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in.Webhooks[0].ClientConfig.CABundle = secret.Data["ca.crt"]
	if err := c.Tracker().Update(registrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"), in, ""); err != nil {
		t.Fatal(err)
	}
}

// neverWritten fails the test if the registration is written: the controller has no right to.
func neverWritten(t *testing.T, c *fake.Clientset) {
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		c.PrependReactor(verb, "mutatingwebhookconfigurations", func(core.Action) (bool, runtime.Object, error) {
			t.Errorf("%s of the registration", verb)
			return true, nil, errors.New("forbidden")
		})
	}
}

// TestLeaderAnswers: API servers find the leader by the slice, and trust the certificate of
// the Secret, which it created.
func TestLeaderAnswers(t *testing.T) {
	c := registered()
	// The slice of the previous leader is in the way.
	_, err := c.DiscoveryV1().EndpointSlices("thaw-system").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: Name}, AddressType: discoveryv1.AddressTypeIPv6, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"fd00::1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(options(c))
	if err != nil {
		t.Fatal(err)
	}
	neverWritten(t, c)
	checked := make(chan struct{}, 16)
	c.PrependReactor("get", "mutatingwebhookconfigurations", func(core.Action) (bool, runtime.Object, error) {
		select {
		case checked <- struct{}{}: // after the certificate and the slice
		default:
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer cancel()
	<-checked
	trust(t, c)
	state, b, err := ask(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if state.Version != tls.VersionTLS13 || !strings.Contains(string(b), `"allowed":true`) || !strings.Contains(string(b), `"patch"`) {
		t.Errorf("%x %s", state.Version, b)
	}
}

// TestCertificate: the first leader creates the certificate, the next ones use it, and a
// replaced one is used from the next check on. It is not replaced without renew.
func TestCertificate(t *testing.T) {
	c := registered()
	neverWritten(t, c)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	leader := func() *Webhook {
		w, err := New(options(c))
		if err != nil {
			t.Fatal(err)
		}
		w.now = func() time.Time { return now }
		return w
	}
	shown := func(w *Webhook) string { return string(w.cert.Load().Certificate[0]) }
	secrets := c.CoreV1().Secrets("thaw-system")

	first := leader()
	if d := first.sync(t.Context(), 8443); d != retryEvery || !strings.Contains(first.lastError, "do not trust") {
		t.Errorf("untrusted: again in %v, %q", d, first.lastError)
	}
	trust(t, c)
	if d := first.sync(t.Context(), 8443); d != syncEvery || first.lastError != "" {
		t.Errorf("trusted: again in %v, %q", d, first.lastError)
	}
	second := leader()
	if d := second.sync(t.Context(), 8443); d != syncEvery || shown(second) != shown(first) {
		t.Errorf("another leader: again in %v, %q", d, second.lastError)
	}

	// Nine years later it is still used; the installation replaces it.
	now = now.Add(9 * 365 * 24 * time.Hour)
	if d := second.sync(t.Context(), 8443); d != syncEvery || shown(second) != shown(first) {
		t.Errorf("an old one: again in %v, %q", d, second.lastError)
	}
	next, err := EnsureCertificate(t.Context(), secrets, second.host(), true, now)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := EnsureCertificate(t.Context(), secrets, second.host(), true, now); err != nil || !bytes.Equal(again.Root, next.Root) {
		t.Errorf("a fresh one is replaced: %v", err)
	}
	if d := second.sync(t.Context(), 8443); d != retryEvery || shown(second) == shown(first) {
		t.Errorf("a replaced one: again in %v, %q", d, second.lastError)
	}
	trust(t, c)
	if d := second.sync(t.Context(), 8443); d != syncEvery {
		t.Errorf("a replaced one that is trusted: again in %v, %q", d, second.lastError)
	}

	// An invalid one is reported, and the last valid one stays.
	last := shown(second)
	other, err := mtls.Issue(now, second.host())
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*corev1.Secret){
		"no key":            func(s *corev1.Secret) { s.Data["tls.key"] = nil },
		"no authority":      func(s *corev1.Secret) { s.Data["ca.crt"] = []byte("x") },
		"another authority": func(s *corev1.Secret) { s.Data["ca.crt"] = other.Root },
		"an empty Secret":   func(s *corev1.Secret) { s.Data = nil },
		"an expired one":    func(*corev1.Secret) { now = now.Add(11 * 365 * 24 * time.Hour) },
	} {
		s, err := secrets.Get(t.Context(), SecretName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		before, then := s.DeepCopy(), now
		change(s)
		if _, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if d := second.sync(t.Context(), 8443); d != retryEvery || !strings.Contains(second.lastError, "thaw-knative install") ||
			shown(second) != last {
			t.Errorf("%s: again in %v, %q", what, d, second.lastError)
		}
		now = then
		if _, err := secrets.Update(t.Context(), before, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMissingObjects: missing or foreign objects are waited for.
func TestMissingObjects(t *testing.T) {
	for name, c := range map[string]*fake.Clientset{
		"nothing": fake.NewClientset(),
		"no registration": fake.NewClientset(
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "thaw-system", Name: Name}}),
		"a registration of another Service": fake.NewClientset(
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "thaw-system", Name: Name}},
			&registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: Name}, Webhooks: []registrationv1.MutatingWebhook{{ClientConfig: registrationv1.WebhookClientConfig{URL: new("https://example.com")}}}}),
	} {
		w, err := New(options(c))
		if err != nil {
			t.Fatal(err)
		}
		if d := w.sync(t.Context(), 1); d != retryEvery || w.lastError == "" {
			t.Errorf("%s: again in %v, %q", name, d, w.lastError)
		}
	}
}

func TestNewWantsAnAddress(t *testing.T) {
	for _, bad := range []string{"", "localhost", "10.0.0.1:80"} {
		o := options(registered())
		o.Advertise = bad
		if _, err := New(o); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	o := options(registered())
	o.Hint = nil
	if _, err := New(o); err == nil {
		t.Error("no hint is taken")
	}
}

func FuzzAdmit(f *testing.F) {
	f.Add(review(f, "a", "CREATE", "pods", pod("llama-00001", nil)))
	f.Add(review(f, "a", "CREATE", "pods", pod("llama-00001", &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}})))
	f.Add([]byte(`{"request":{"object":null}}`))
	f.Add([]byte(`{"request":{"operation":"CREATE","resource":{"resource":"pods"},"object":{"metadata":{"labels":{"serving.knative.dev/revision":"llama-00001"}},"spec":null}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		reviewHandler(func(string, string, string) (string, bool) { return "gpu1", true }).ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			return
		}
		var out admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || out.Response == nil || !out.Response.Allowed {
			t.Fatalf("%s", w.Body)
		}
	})
}
