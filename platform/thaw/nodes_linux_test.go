package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// shortFolder makes a folder whose path is short enough for a unix socket.
func shortFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "thaw-node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestPodThatVanishes: a pod is killed all at once, as by a deletion without grace. It
// leaves no lease, process or mount, and the controller is informed.
func TestPodThatVanishes(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.Missing(t, "a pod's namespaces take root")
	}
	source := stallingTiny(t)
	source.stall.Store(false)
	store := shortFolder(t)
	_, heard, args := controllerOf(t)
	log := &journal{}
	loaderOf(t, store, log, args...)
	mounts := func() string {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := strings.Count(mounts(), store)

	// The pod has its own process namespace and /proc, as in a container.
	scratch := shortFolder(t)
	c := exec.Command("/bin/sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$0" "$@"`, os.Args[0],
		"runtime", "--port", "0", "--sockets", filepath.Join(store, "sockets"), "--termination-message", filepath.Join(scratch, "none"), "--dir",
		filepath.Join(scratch, "thaw"))
	c.Env = append(os.Environ(), "THAW_MODEL="+inPodOf(azuretest.Location("tiny"), "ember", ""), "TMPDIR="+scratch, "HOME="+scratch,
		"JOURNEY="+scratch)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	p := &podProcess{platform: &platform{t: t, log: &journal{}, data: scratch}, out: &journal{}, scratch: scratch}
	c.Stdout, c.Stderr = p.out, p.log
	if err := c.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
			testkit.Missing(t, "a pod's namespaces:", err)
		}
		t.Fatal(err)
	}
	ended := sync.OnceFunc(func() { c.Process.Kill(); c.Wait() })
	t.Cleanup(ended)
	defer func() {
		if t.Failed() {
			t.Logf("the loader's log:\n%s\nthe shim's:\n%s\nthe engine's:\n%s", log, p.log, p.out)
		}
	}()
	p.eventually("an address", func() bool {
		if m := answersOn.FindStringSubmatch(p.log.String()); m != nil {
			p.url = "http://127.0.0.1:" + m[1]
		}
		return p.url != ""
	})
	p.eventually("it is ready", func() bool { return p.do("GET", "/readyz", "").status == 200 })
	inUse := func() bool {
		out, errs, code := verb(t, "cache", "ls", "--data", store, "-o", "json")
		if code != 0 || !strings.Contains(out, `"in_use"`) {
			t.Fatalf("%d\n%s%s", code, out, errs)
		}
		return strings.Contains(out, `"in_use": true`)
	}
	if !inUse() {
		t.Fatal("what it has is not held")
	}
	p.eventually("what it arrived by is gone", func() bool { return strings.Count(mounts(), store) == before })
	engines := processesMarked(scratch)
	if len(engines) < 2 {
		t.Fatalf("processes of the pod: %v", engines)
	}

	ended() // SIGKILL of the first process: the kernel kills all others
	p.eventually("the lease is gone", func() bool { return !inUse() })
	p.eventually("all processes are gone", func() bool { return len(processesMarked(scratch)) == 0 })
	p.eventually("the controller hears it", func() bool {
		gone := 0
		heard.locked(func() { gone = len(heard.gone) })
		return gone == 1
	})
	p.eventually("nothing is held for it", func() bool {
		b, err := os.ReadFile(filepath.Join(store, "held.json"))
		return err == nil && string(b) == "[]"
	})
	p.eventually("no mount of the store is left", func() bool { return strings.Count(mounts(), store) == before })
}

// stageFromLoader has a loader stage a source; on gets the progress and may be nil.
func stageFromLoader(t *testing.T, store, source string, on func(controlstream.Staging)) controlstream.Staged {
	t.Helper()
	var conn *jsonsocket.Conn
	(&platform{t: t}).eventually("a loader answers", func() bool {
		var err error
		conn, err = jsonsocket.Dial(t.Context(), filepath.Join(store, "sockets", "loader.sock"), controlstream.MaxLine)
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	conn.AcceptFiles()
	defer conn.CloseFiles()
	for _, m := range []controlstream.FromPod{{Hello: &controlstream.Shim{PodIP: "10.0.0.7", Port: 8080, Folders: true}}, {Stage: &controlstream.Stage{ID: 1, Source: source}}} {
		if err := conn.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for {
		var m controlstream.ToPod
		if err := conn.Receive(&m); err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Staging != nil && on != nil:
			on(*m.Staging)
		case m.Failed != nil:
			t.Fatalf("%+v", m.Failed)
		case m.Staged != nil:
			return *m.Staged
		}
	}
}

// aLoader starts the loader of one of several nodes.
func aLoader(t *testing.T, name, store string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"loader", "--store", store, "--node", name, "--addr", "off", "--allow-local", "--keep-free", "0", "--peer-addr", "127.0.0.1:0", "--advertise", "127.0.0.1"}, args...)...)
	log := &journal{}
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", name, log)
		}
	})
	return c
}

// TestLoadersServeBlocks: three nodes stage one model in turn. Its bytes leave the blob server
// once; later nodes get them from peers, whose addresses the controller sends. If a peer
// is killed while it sends, the receiver continues with the next one.
func TestLoadersServeBlocks(t *testing.T) {
	const size = 32 << 20
	s := &stalling{}
	s.Server = azuretest.Of("")
	s.URL = testkit.Serve(t, s).URL
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", s.Getenv("AZURE_STORAGE_CONNECTION_STRING"))
	head, _ := json.Marshal(map[string]any{"w": map[string]any{"dtype": "U8", "shape": []int{size}, "data_offsets": []int{0, size}}})
	body := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
	noise := rand.NewChaCha8([32]byte{1})
	rest := make([]byte, size)
	noise.Read(rest)
	body = append(body, rest...)
	s.Put("big/config.json", []byte(`{"model_type":"llama"}`))
	s.Put("big/model.safetensors", body)
	// egress is the number of weight bytes that left the blob server.
	egress := func() (n int64) {
		for _, get := range s.Gets() {
			_, span, ok := strings.Cut(get, ".safetensors bytes=")
			if !ok {
				continue
			}
			from, to, _ := strings.Cut(span, "-")
			a, _ := strconv.ParseInt(from, 10, 64)
			b, err := strconv.ParseInt(to, 10, 64)
			if err != nil {
				t.Errorf("an open range: %s", get)
			}
			n += b - a + 1
		}
		return n
	}

	// The controller sends the addresses of the block servers.
	const token = "control-stream-token"
	var mu sync.Mutex
	urls := map[string]string{}
	var hub *controlstream.Hub
	news := func(name string, hb functions.Heartbeat) {
		mu.Lock()
		defer mu.Unlock()
		if urls[name] == hb.PeerURL {
			return
		}
		urls[name] = hb.PeerURL
		for to := range urls {
			peers := []functions.Peer{}
			for id, url := range urls {
				if id != to {
					peers = append(peers, functions.Peer{ID: id, URL: url})
				}
			}
			hub.SendToNode(to, controlstream.Update{Peers: &peers})
		}
	}
	hub = controlstream.NewHub(controlstream.HubOptions{Tokens: func() []string { return []string{token} }, Node: news, Pods: func(string, bool, []controlstream.Pod) {},
		Joined: func(_ controlstream.Kind, id string) {
			hub.SendToNode(id, controlstream.Update{Owners: &controlstream.Owners{Said: true}})
		}})
	certs, controller := loaderCertificates(t)
	control := httptest.NewUnstartedServer(hub)
	controlstream.Configure(control.Config)
	control.TLS, control.EnableHTTP2 = mtls.OpenServer(controller, controlstream.NameLoader), true
	control.StartTLS()
	t.Cleanup(control.Close)
	t.Cleanup(hub.Close)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--controller", strings.TrimPrefix(control.URL, "https://"), "--token-file", file, "--certs", certs}
	stores := map[string]string{}
	procs := map[string]*exec.Cmd{}
	for _, name := range []string{"n1", "n2", "n3"} {
		stores[name] = shortFolder(t)
		procs[name] = aLoader(t, name, stores[name], args...)
	}
	(&platform{t: t}).eventually("three loaders have come", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(urls) == 3
	})

	source := azuretest.Location("big")
	whole := func(name string, got controlstream.Staged) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(got.Path, "model.safetensors"))
		if err != nil || sha256.Sum256(b) != sha256.Sum256(body) || !bytes.Equal(b, body) {
			t.Errorf("%s has other bytes: %d, %v", name, len(b), err)
		}
	}
	first := stageFromLoader(t, stores["n1"], source, nil)
	whole("n1", first)
	once := egress()
	if once < size || once > size+size/10 {
		t.Errorf("%d bytes have left the store for %d", once, size)
	}
	whole("n2", stageFromLoader(t, stores["n2"], source, nil))
	if n := egress(); n != once {
		t.Errorf("the second node had %d bytes from the store", n-once)
	}
	// The first node is killed while the third reads from it.
	var killed sync.Once
	got := stageFromLoader(t, stores["n3"], source, func(p controlstream.Staging) {
		if p.Done > 0 && p.Done < p.Total {
			killed.Do(func() { procs["n1"].Process.Kill(); procs["n1"].Wait() })
		}
	})
	whole("n3", got)
	if got.Digest != first.Digest {
		t.Errorf("another checkpoint: %s and %s", got.Digest, first.Digest)
	}
	if n := egress() - once; n >= size {
		t.Errorf("of %d bytes %d came from the store, as without peers", size, n)
	}
	// Even if the kill came too late, the next node must stage without it.
	killed.Do(func() { procs["n1"].Process.Kill(); procs["n1"].Wait() })
	fmt.Fprintln(t.Output(), "egress", egress(), "of", size)
}
