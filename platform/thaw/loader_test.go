package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// stalling is a blob server that, while stall is set, breaks the connection after so many
// bytes of weights and sends no more.
type stalling struct {
	*azuretest.Server
	stall atomic.Bool
	after int
}

func (s *stalling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if from, _, ok := azuretest.Range(r.Header.Get("x-ms-range")+r.Header.Get("Range"), 1<<40); ok && s.stall.Load() &&
		strings.HasSuffix(r.URL.Path, ".safetensors") {
		w = &slow{ResponseWriter: w, left: s.after - from, gone: r.Context().Done()}
	}
	s.Server.ServeHTTP(w, r)
}

type slow struct {
	http.ResponseWriter
	left int
	gone <-chan struct{}
}

func (s *slow) Write(b []byte) (int, error) {
	n := min(len(b), max(s.left, 0))
	s.left -= n
	if n > 0 {
		if _, err := s.ResponseWriter.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	if n == len(b) {
		return n, nil
	}
	s.ResponseWriter.(http.Flusher).Flush()
	if n > 0 {
		panic(http.ErrAbortHandler) // breaks the connection
	}
	<-s.gone
	return n, io.ErrClosedPipe
}

// stallingTiny serves the small model, of which a first loader process gets only a part.
func stallingTiny(t *testing.T) *stalling {
	t.Helper()
	s := &stalling{after: 5 << 18}
	s.Server = azuretest.Of("")
	s.URL = testkit.Serve(t, s).URL
	eachTinyFile(t, s.Put)
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", s.Getenv("AZURE_STORAGE_CONNECTION_STRING"))
	return s
}

// loaderOf starts a loader in its own process.
func loaderOf(t *testing.T, store string, log io.Writer, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"loader", "--store", store, "--node", "n1", "--addr", "off", "--allow-local", "--keep-free", "0"}, args...)...)
	c.Stderr = log
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "loader of n1") {
		t.Fatalf("%q, %v", line, err)
	}
	return c
}

// nodeReports records what loaders report to the controller.
type nodeReports struct {
	mu     sync.Mutex
	pods   map[string]functions.ReplicaStatus
	gone   map[string]bool
	node   functions.Heartbeat
	joined int
}

func (r *nodeReports) locked(f func()) { r.mu.Lock(); defer r.mu.Unlock(); f() }

// states counts the pods in a state.
func (r *nodeReports) states(s functions.State) (n int) {
	r.locked(func() {
		for _, st := range r.pods {
			if st.State == s {
				n++
			}
		}
	})
	return n
}

// controllerOf is the controller's end of control streams.
func controllerOf(t *testing.T) (*controlstream.Hub, *nodeReports, []string) {
	t.Helper()
	const token = "control-stream-token"
	h := &nodeReports{pods: map[string]functions.ReplicaStatus{}, gone: map[string]bool{}}
	var hub *controlstream.Hub
	hub = controlstream.NewHub(controlstream.HubOptions{
		Tokens: func() []string { return []string{token} },
		Node:   func(_ string, hb functions.Heartbeat) { h.locked(func() { h.node = hb }) },
		Pods: func(node string, whole bool, pods []controlstream.Pod) {
			h.locked(func() {
				if whole {
					clear(h.pods)
				}
				for _, p := range pods {
					if h.pods[p.UID] = p.Status; p.Gone {
						delete(h.pods, p.UID)
						h.gone[p.UID] = true
					}
				}
			})
		},
		Joined: func(_ controlstream.Kind, id string) {
			h.locked(func() { h.joined++ })
			hub.SendToNode(id, controlstream.Update{Owners: &controlstream.Owners{Said: true}})
		},
	})
	srv := httptest.NewUnstartedServer(hub)
	controlstream.Configure(srv.Config)
	srv.Start()
	t.Cleanup(srv.Close)
	t.Cleanup(hub.Close)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return hub, h, []string{"--controller", strings.TrimPrefix(srv.URL, "http://"), "--token-file", file}
}

// TestLoaderOfANode: two pods need one model; the loader is killed while it stages, and
// the next one resumes. Both pods serve, the controller gets their status, and one is
// told to stop.
func TestLoaderOfANode(t *testing.T) {
	source := stallingTiny(t)
	source.stall.Store(true)
	store, err := os.MkdirTemp("", "thaw-node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(store) })
	hub, heard, args := controllerOf(t)
	log := &journal{}
	defer func() {
		if t.Failed() {
			t.Logf("the loader's log:\n%s", log)
		}
	}()
	first := loaderOf(t, store, log, args...)
	var pods []*podProcess
	for range 2 {
		pods = append(pods, runtimeOf(t, store, inPodOf(azuretest.Location("tiny"), "ember", "")))
	}
	for _, p := range pods {
		p.eventually("more than half of it is here", func() bool {
			var percent int
			_, after, _ := strings.Cut(p.do("GET", "/readyz", "").body, ", ")
			fmt.Sscanf(after, "%d", &percent)
			return percent > 60
		})
	}
	first.Process.Kill()
	first.Wait()
	source.stall.Store(false)
	source.Fault(nil) // forget earlier requests
	second := loaderOf(t, store, log, args...)
	for _, p := range pods {
		p.ready()
		if r := p.chat("tiny", ""); r.status != 200 || r.text() == "" {
			t.Errorf("a chat: %d %s", r.status, r.body)
		}
	}
	weights := 0
	for _, get := range source.Gets() {
		if _, span, ok := strings.Cut(get, ".safetensors bytes="); ok {
			weights++
			from, _, _ := strings.Cut(span, "-")
			if n, err := strconv.Atoi(from); err != nil || n < 1<<20 {
				t.Errorf("brought again: %s", get)
			}
		}
	}
	if weights == 0 {
		t.Errorf("nothing was left to bring: %v", source.Gets())
	}
	pods[0].eventually("the controller knows both", func() bool { return heard.states(functions.Ready) == 2 })
	heard.locked(func() {
		for uid, st := range heard.pods {
			if !strings.HasPrefix(uid, "local-") || !strings.HasPrefix(st.Endpoint, "http://") || st.Key != "" || st.Team != "" {
				t.Errorf("%s: %+v", uid, st)
			}
		}
	})
	pods[0].eventually("the controller knows what the node has", func() bool {
		found := false
		heard.locked(func() {
			found = len(heard.node.Cached) == 1 && heard.node.AgentID == "n1" && len(heard.node.Models) == 0
		})
		return found
	})
	// The verbs show it.
	if out, errs, code := verb(t, "cache", "ls", "--data", store, "-o", "json"); code != 0 || !strings.Contains(out, `"in_use": true`) || !strings.Contains(out, azuretest.Location("tiny")) {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	// A stop of the controller reaches the named pod.
	uid := "local-" + strconv.Itoa(pods[0].proc.Process.Pid)
	if !hub.SendToNode("n1", controlstream.Update{Stop: []controlstream.Stop{{UID: uid, Seconds: 5, Reason: "its room is needed"}}}) {
		t.Error("no loader to tell")
	}
	pods[0].eventually("it is told to stop", func() bool { return strings.Contains(pods[0].log.String(), "its room is needed") })
	pods[0].proc.Process.Signal(syscall.SIGTERM)
	pods[0].ends(0)
	pods[1].eventually("it is gone", func() bool {
		gone := false
		heard.locked(func() { gone = heard.gone[uid] && len(heard.pods) == 1 })
		return gone
	})
	// The other pod serves on without a loader.
	second.Process.Signal(syscall.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Errorf("the loader ended with %v", err)
	}
	if r := pods[1].chat("tiny", ""); r.status != 200 {
		t.Errorf("without a loader: %d %s", r.status, r.body)
	}
	if b, err := os.ReadFile(filepath.Join(store, "held.json")); err != nil || !bytes.Contains(b, []byte("sha256:")) {
		t.Errorf("what it holds is not written down: %q, %v", b, err)
	}
}

// TestDamagedFileInPod: the node's copy of a model is damaged. The engine of the next pod
// fails to load it, the node's loader reads the checkpoint again, removes the damaged file
// and fetches it again, and the pod serves.
func TestDamagedFileInPod(t *testing.T) {
	source := stallingTiny(t)
	store, err := os.MkdirTemp("", "thaw-node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(store) })
	log := &journal{}
	defer func() {
		if t.Failed() {
			t.Logf("the loader's log:\n%s", log)
		}
	}()
	loaderOf(t, store, log)
	model := inPodOf(azuretest.Location("tiny"), "ember", "")
	first := runtimeOf(t, store, model)
	first.ready()
	first.proc.Process.Signal(syscall.SIGTERM)
	first.ends(0)
	found, err := filepath.Glob(filepath.Join(store, "store", "checkpoints", "*", "files", "*.safetensors"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	if err := os.Chmod(found[0], 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(found[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("damaged"), 8) // in the header
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	source.Fault(nil) // forget earlier requests
	second := runtimeOf(t, store, model)
	second.ready()
	if r := second.chat("tiny", ""); r.status != 200 || r.text() == "" {
		t.Errorf("a chat: %d %s", r.status, r.body)
	}
	for _, get := range source.Gets() {
		if !strings.Contains(get, ".safetensors") {
			t.Errorf("fetched again: %s", get)
		}
	}
	if !strings.Contains(log.String(), "damaged and was removed") {
		t.Error("the loader does not report the damaged checkpoint")
	}
}

// loaderCertificates is a folder with the certificate of a loader, and the identity of the
// controller by the same authority.
func loaderCertificates(t *testing.T) (dir string, controller func() (*mtls.Identity, error)) {
	t.Helper()
	made, err := mtls.Issue(time.Now(), controlstream.NameController, controlstream.NameLoader)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	leaf := made.Leaves[controlstream.NameLoader]
	for name, b := range map[string][]byte{mtls.RootFile: made.Root, mtls.CertFile: leaf.Cert, mtls.KeyFile: leaf.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, func() (*mtls.Identity, error) { return mtls.Read(made.Root, made.Leaves[controlstream.NameController]) }
}

func TestLoaderSettings(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-16-letters"), 0o600); err != nil {
		t.Fatal(err)
	}
	certs, _ := loaderCertificates(t)
	for _, x := range []struct {
		args string
		says string
	}{
		{"--controller c:1", "token-file"},
		{"--controller c --token-file " + token, "no address"},
		{"--controller c:1 --token-file /nowhere", "token"},
		{"--peer-addr :1 --token-file " + token, "certs: loaders exchange blocks over TLS only"},
		{"--peer-addr 127.0.0.1:0", "certs: "},
		{"--peer https://n:1", "certs: "},
		{"--peer-addr :1 --certs /nowhere", "--certs /nowhere"},
		{"--peer-addr here --certs /nowhere", "no address"},
		{"--addr here", "no address"},
		{"--folder models", "absolute"},
		{"--allow-source models", "allow-source"},
		{"--allow-source file:///models", "--folder"},
		{"--ahead-for 0s", "ahead-for"},
		{"--peer http://x:1 --certs " + certs, "--peer"},
		{"--store-bytes much", "store-bytes"},
		{"--keep-free 101", "keep-free: 101 is no percentage"},
		{"--store /tmp/" + strings.Repeat("x", 100), "socket"},
	} {
		out, errs, code := verb(t, append([]string{"loader", "--store", t.TempDir()}, strings.Fields(x.args)...)...)
		if code != 2 || !strings.Contains(errs, x.says) {
			t.Errorf("%s: %d\n%s%s", x.args, code, out, errs)
		}
	}
	out, _, code := verb(t, "loader", "--help")
	if code != 0 || !strings.Contains(out, "--store-bytes") || !strings.Contains(out, "hostPID") {
		t.Errorf("%d\n%s", code, out)
	}
}
