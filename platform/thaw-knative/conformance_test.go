package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// conforming are the tests of Knative's conformance suite for ingress classes
// (knative.dev/networking/test/conformance/ingress) that thaw's class must pass,
// stable, beta and alpha.
var conforming = []string{
	"basics", "basics/http2", "grpc", "grpc/split", "headers/pre-split", "headers/post-split", "headers/probe",
	"hosts/multiple", "dispatch/path", "dispatch/percentage", "dispatch/path_and_percentage", "dispatch/rule",
	"retry", "timeout", "update", "visibility", "visibility/split", "visibility/path", "ingressclass",
	"websocket", "websocket/split",
	"host-rewrite", "headers/tags", // beta
}

// outside are those that are not its matter, and why.
var outside = map[string]string{
	"tls": "spec.tls: certificates are Secrets, and thaw's controller may read no Secret but its own keys, nor do activators " +
		"speak to the API server. TLS ends before the activators, at a load balancer or gateway.",
	"httpoption": "asks over https first, with a certificate of spec.tls. That plain HTTP is redirected, and to what, " +
		"is tested in platform/gateway.",
}

// TestConformance runs Knative's suite against the controller and two activators,
// as programs beside a cluster: make conformance.
func TestConformance(t *testing.T) {
	suite := os.Getenv("THAW_CONFORMANCE")
	if suite == "" {
		testkit.Missing(t, "THAW_CONFORMANCE does not name Knative's suite: make cluster conformance")
	}
	c := open(t)
	front := startInstallation(c)
	// The suite has a namespace of its own, by that name. One that was left by a run
	// before is emptied, so that nothing of it is routed.
	const space = "serving-tests"
	if out, err := c.try("", "create", "namespace", space); err != nil && !strings.Contains(out, "AlreadyExists") {
		t.Fatal(err, out)
	}
	c.kubectl("", "delete", "--namespace", space, "kingress,services,pods,secrets", "--all", "--wait=false")
	// Without it pods are refused, and the suite does not try twice.
	c.eventually("an account for pods", func() (bool, string) {
		out, err := c.try("", "get", "--namespace", space, "serviceaccount", "default")
		return err == nil, out
	})

	skip := make([]string, 0, len(outside))
	for name, why := range outside {
		t.Logf("not run: %s: %s", name, why)
		skip = append(skip, name)
	}
	// In Go's own form: its tests have / in their names.
	args := []string{"-test.v=true", "-test.timeout", "15m", "-test.parallel", "8", "-enable-beta", "-enable-alpha", "-skip-tests", strings.Join(skip, ","),
		"-ingressClass", "thaw.ingress.networking.knative.dev", "-kubeconfig", c.kubeconfig, "-dockerrepo", "dev.local", "-tag", "test"}
	if only := os.Getenv("THAW_CONFORMANCE_RUN"); only != "" {
		args = append(args, "-test.run", "TestIngressConformance/"+only)
	}
	cmd := exec.CommandContext(t.Context(), suite, args...)
	cmd.Env = append(os.Environ(), "SYSTEM_NAMESPACE=knative-serving")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	failed := cmd.Run()
	if file := os.Getenv("THAW_CONFORMANCE_LOG"); file != "" {
		if err := os.WriteFile(file, log.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
	results := map[string]string{}
	for line := range strings.Lines(log.String()) {
		what, rest, ok := strings.Cut(strings.TrimSpace(line), ": TestIngressConformance/")
		if name, _, timed := strings.Cut(rest, " ("); ok && timed && strings.HasPrefix(what, "--- ") {
			results[name] = strings.TrimPrefix(what, "--- ")
		}
	}
	if os.Getenv("THAW_CONFORMANCE_RUN") != "" {
		t.Logf("a part of it: %v, %v\n%s", failed, results, log.String())
		if failed != nil {
			t.Fail()
		}
		return
	}
	passed := 0
	for _, name := range conforming {
		if results[name] != "PASS" {
			t.Errorf("%s: %q", name, results[name])
			continue
		}
		passed++
	}
	for name := range outside {
		if results[name] != "SKIP" {
			t.Errorf("%s: %q, though it is left out", name, results[name])
		}
	}
	for name, result := range results {
		known := func(k string) bool { return name == k || strings.HasPrefix(name, k+"/") }
		if _, out := outside[name]; !out && !slices.ContainsFunc(conforming, known) {
			t.Errorf("%s: %s, and it is in no list of expected results", name, result)
		}
	}
	if failed != nil || t.Failed() {
		front.logs()
		var wrong []string
		for name, result := range results {
			if result == "FAIL" {
				wrong = append(wrong, name)
			}
		}
		t.Fatalf("the suite: %v\n%s%s", failed, tail(log.Bytes(), 1<<10), tail([]byte(outputOf(log.String(), wrong)), 6<<10))
	}
	t.Logf("%d of %d tests passed, %d are outside of what the class does", passed, len(conforming)+len(outside), len(outside))
}

// outputOf is what some tests of the suite have said in its output: those that run beside
// them, the clients' warnings and the probes that went well are thousands of lines.
func outputOf(log string, names []string) string {
	var b strings.Builder
	in := ""
	for line := range strings.Lines(log) {
		if kind, rest, ok := strings.Cut(line, "TestIngressConformance/"); ok && strings.HasPrefix(kind, "=== ") {
			in = strings.TrimSpace(rest)
			continue
		}
		if strings.HasPrefix(strings.TrimSpace(line), "--- ") { // the sum of all of them
			in = ""
			continue
		}
		if !slices.Contains(names, in) || !strings.HasPrefix(line, " ") || strings.Contains(line, "Got OK status!") {
			continue
		}
		b.WriteString(in + ": " + strings.TrimLeft(line, " "))
	}
	return b.String()
}

func TestOutputOf(t *testing.T) {
	const log = `=== RUN   TestIngressConformance/retry
=== PAUSE TestIngressConformance/retry
=== CONT  TestIngressConformance/retry
=== NAME  TestIngressConformance/update
    update.go:55: using port 91
    update.go:203: [x] Got OK status!
W1122 warnings.go:107] "Endpoints is deprecated"
=== NAME  TestIngressConformance/retry
    retry.go:33: using port 92
=== NAME  TestIngressConformance/update
    util.go:1: error making GET request
--- FAIL: TestIngressConformance (0.09s)
    --- PASS: TestIngressConformance/retry (27.27s)
    --- FAIL: TestIngressConformance/update (62.27s)
`
	want := "update: update.go:55: using port 91\nupdate: util.go:1: error making GET request\n"
	if got := outputOf(log, []string{"update"}); got != want {
		t.Errorf("%q, wanted %q", got, want)
	}
}

func tail(b []byte, most int) []byte { return b[max(0, len(b)-most):] }

// installation is thaw's controller and two activators as programs on the node, behind
// Services of the test's namespace.
type installation struct {
	*cluster
	programs []*program
	port     int // that was handed out last
}

// program is one that runs until the test ends.
type program struct {
	name string
	log  string
}

// startInstallation starts them, and returns when both activators know their routes.
func startInstallation(c *cluster) *installation {
	f := &installation{cluster: c}
	node := strings.TrimSpace(c.kubectl("", "get", "nodes", "-o", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`))
	token := write(c.T, "token", strings.Repeat("conformance-", 3)+"\n")
	at := func() string { return f.free(node) }
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	controller := at()
	f.start("controller", "controller", "--kubeconfig", c.kubeconfig, "--namespace", c.namespace, "--id", "controller", "--addr", controller,
		"--advertise", controller, "--token-file", token, "--log-format", "text", "--log-level", "debug")
	var public, private []string
	for _, id := range []string{"activator-1", "activator-2"} {
		a, b, metrics := at(), at(), at()
		f.start(id, "activator", "--addr", a, "--private-addr", b, "--metrics-addr", metrics, "--controller", controller, "--token-file", token,
			"--id", id, "--log-format", "text", "--drain", "5s", "--shutdown-delay", "0s")
		public, private = append(public, a), append(private, b)
		c.eventually(id+" to be ready", func() (bool, string) {
			res, err := client.Get("http://" + metrics + "/readyz")
			if err != nil {
				return false, err.Error()
			}
			defer res.Body.Close()
			said, _ := io.ReadAll(res.Body)
			return res.StatusCode == http.StatusOK, string(said)
		})
	}
	c.apply(balancer("thaw", "LoadBalancer", public))
	c.apply(balancer("thaw-local", "ClusterIP", private))
	// A cluster without a cloud gives a load balancer no address. That of the Service
	// leads to the same.
	ip := strings.TrimSpace(c.kubectl("", "get", "service", "thaw", "-o", "jsonpath={.spec.clusterIP}"))
	c.kubectl("", "patch", "service", "thaw", "--subresource=status", "--type", "merge", "-p", `{"status": {"loadBalancer": {"ingress": [{"ip": "`+ip+`"}]}}}`)
	// The node's rules for Services are a little behind, and the suite's clients take
	// a refused connection for an answer.
	for _, service := range []string{"thaw", "thaw-local"} {
		ip := strings.TrimSpace(c.kubectl("", "get", "service", service, "-o", "jsonpath={.spec.clusterIP}"))
		c.eventually("a way through the Service "+service, func() (bool, string) {
			res, err := client.Get("http://" + ip)
			if err != nil {
				return false, err.Error()
			}
			res.Body.Close()
			return true, ""
		})
	}
	return f
}

// Ports for programs lie below those that the kernel gives to connections going out
// (from 32768): of these a free one may be taken before the program listens there.
const firstPort, lastPort = 20000, 30000

// free returns an unused address; each call returns another one.
func (i *installation) free(host string) string {
	for i.port = max(i.port+1, firstPort); i.port <= lastPort; i.port++ {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(i.port)))
		if err != nil {
			continue
		}
		l.Close()
		return l.Addr().String()
	}
	i.Fatalf("every port of %s from %d to %d is taken", host, firstPort, lastPort)
	return ""
}

// apply makes objects.
func (c *cluster) apply(objects []map[string]any) {
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			c.Fatal(err)
		}
		c.kubectl(string(text), "apply", "-f", "-")
	}
}

// balancer is a Service before programs on the node.
func balancer(name, kind string, addrs []string) []map[string]any {
	objects := []map[string]any{{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"type": kind, "ports": []any{map[string]any{"name": "http", "port": 80}}}}}
	for i, addr := range addrs {
		host, port, _ := net.SplitHostPort(addr)
		objects = append(objects, map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
			"metadata":  map[string]any{"name": fmt.Sprintf("%s-%d", name, i), "labels": map[string]string{"kubernetes.io/service-name": name}},
			"endpoints": []any{map[string]any{"addresses": []string{host}, "conditions": map[string]bool{"ready": true}}},
			"ports":     []any{map[string]any{"name": "http", "port": json.Number(port)}}})
	}
	return objects
}

// start runs thaw-knative until the test ends; it must end well then.
func (i *installation) start(name string, args ...string) {
	path := filepath.Join(i.TempDir(), name+".log")
	log, err := os.Create(path)
	if err != nil {
		i.Fatal(err)
	}
	cmd := exec.CommandContext(i.Context(), filepath.Join(os.Getenv("THAW_PROGRAMS"), "thaw-knative"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		i.Fatal(err)
	}
	i.programs = append(i.programs, &program{name, path})
	i.Cleanup(func() { // the test's context has ended
		cmd.Wait()
		log.Close()
		if !cmd.ProcessState.Success() {
			text, _ := os.ReadFile(path)
			i.Errorf("%s: %v\n%s", name, cmd.ProcessState, tail(text, 4<<10))
		}
	})
}

// logs tells what the programs said.
func (i *installation) logs() {
	for _, p := range i.programs {
		text, _ := os.ReadFile(p.log)
		i.Logf("%s:\n%s", p.name, tail(text, 8<<10))
	}
}

// TestConformanceServing is what Knative Serving makes of the class: routes, tags
// and shares of a Service of Knative's own autoscaler, a domain mapped to it, and
// the end of both.
func TestConformanceServing(t *testing.T) {
	if os.Getenv("THAW_CONFORMANCE") == "" {
		testkit.Missing(t, "THAW_CONFORMANCE does not name Knative's suite: make cluster conformance")
	}
	c := open(t)
	domain := os.Getenv("THAW_ROUTE_DOMAIN")
	front := startInstallation(c)
	defer func() {
		if t.Failed() {
			front.logs()
		}
	}()
	address := func(service string) string {
		return "http://" + strings.TrimSpace(c.kubectl("", "get", "service", service, "-o", "jsonpath={.spec.clusterIP}"))
	}
	public, private := address("thaw"), address("thaw-local")
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	defer client.CloseIdleConnections()
	get := func(base, host string, fields ...string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		for i := 0; i+1 < len(fields); i += 2 {
			req.Header.Set(fields[i], fields[i+1])
		}
		res, err := client.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		said, err := io.ReadAll(res.Body)
		if err != nil {
			return 0, err.Error()
		}
		return res.StatusCode, string(said)
	}
	// from is which revision answered: its pod's name begins with that.
	from := func(base, host string, fields ...string) string {
		t.Helper()
		status, said := get(base, host, fields...)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", host, status, said)
		}
		revision, _, _ := strings.Cut(said, "-deployment-")
		return revision
	}
	gone := func(base, host string) {
		t.Helper()
		c.eventually(host+" to be unknown", func() (bool, string) {
			status, said := get(base, host)
			return status == http.StatusNotFound, said
		})
	}
	ready := func(kind, name string) {
		t.Helper()
		c.eventually(kind+" "+name+" to be ready", func() (bool, string) {
			out, err := c.try("", "get", kind, name, "-o", `jsonpath={.metadata.generation} {.status.observedGeneration} {.status.conditions[?(@.type=="Ready")].status}`)
			is := strings.Fields(out)
			if err == nil && len(is) == 3 && is[0] == is[1] && is[2] == "True" {
				return true, ""
			}
			out, _ = c.try("", "get", kind, name, "-o", "jsonpath={.status}")
			return false, out
		})
	}
	service := func(version string, traffic ...string) {
		c.kubectl(fmt.Sprintf(`{"apiVersion": "serving.knative.dev/v1", "kind": "Service",
			"metadata": {"name": "hello", "annotations": {"networking.knative.dev/ingress.class": "thaw.ingress.networking.knative.dev"}},
			"spec": {"template": {"metadata": {"name": "hello-%s"}, "spec": {"containers": [{"image": "dev.local/hello:test"}]}}, "traffic": [%s]}}`,
			version, strings.Join(traffic, ",")), "apply", "-f", "-")
		ready("ksvc", "hello")
	}
	host := "hello." + c.namespace + "." + domain
	inside := "hello." + c.namespace + ".svc.cluster.local"

	service("one", `{"latestRevision": true, "percent": 100}`)
	if got := from(public, host); got != "hello-one" {
		t.Errorf("%s is answered by %s", host, got)
	}
	if got := from(private, inside); got != "hello-one" {
		t.Errorf("%s is answered by %s", inside, got)
	}
	if status, _ := get(public, inside); status != http.StatusNotFound {
		t.Errorf("%s is open to all: %d", inside, status)
	}
	service("two", `{"revisionName": "hello-one", "percent": 80}`, `{"revisionName": "hello-two", "percent": 20, "tag": "next"}`)
	if got := from(public, "next-"+host); got != "hello-two" {
		t.Errorf("the tag is answered by %s", got)
	}
	counts := map[string]int{}
	for range 200 {
		counts[from(public, host)]++
	}
	// Of 200 draws at 20 % fewer than 15 or more than 70 are seen once in ten million runs.
	if n := counts["hello-two"]; n < 15 || n > 70 || n+counts["hello-one"] != 200 {
		t.Errorf("80 to 20 became %v", counts)
	}

	vanity := "vanity-" + c.namespace + ".example.org"
	c.kubectl(fmt.Sprintf(`{"apiVersion": "v1", "kind": "List", "items": [
		{"apiVersion": "networking.internal.knative.dev/v1alpha1", "kind": "ClusterDomainClaim", "metadata": {"name": %[1]q}, "spec": {"namespace": %[2]q}},
		{"apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping",
			"metadata": {"name": %[1]q, "namespace": %[2]q, "annotations": {"networking.knative.dev/ingress.class": "thaw.ingress.networking.knative.dev"}},
			"spec": {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"}}}]}`, vanity, c.namespace), "apply", "-f", "-")
	t.Cleanup(func() {
		exec.Command("kubectl", "--kubeconfig", c.kubeconfig, "delete", "clusterdomainclaim", vanity, "--wait=false").Run()
	})
	ready("domainmapping", vanity)
	if got := from(public, vanity); !strings.HasPrefix(got, "hello-") {
		t.Errorf("the domain is answered by %s", got)
	}
	c.kubectl("", "delete", "domainmapping", vanity)
	gone(public, vanity)
	c.kubectl("", "delete", "ksvc", "hello")
	gone(public, host)
	gone(private, inside)
}
