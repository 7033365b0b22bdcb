//go:build linux

package local

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// engines lists the pids of this test's engines of a model.
func engines(tag string) []int { return processesSpeaking("\x00tag="+tag, "\x00test-engine\x00") }

// tagged makes a model whose engines can be found among all processes.
func tagged(t *testing.T, name string, gpus int) (*functions.Model, string) {
	tag := fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano())
	return model(t, name, func(s *functions.ModelSpec) { s.Resources.GPUs = gpus }, "tag="+tag), tag
}

func events(addr string) (es []functions.Event) {
	res, err := http.Get("http://" + addr + "/test/events")
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	json.NewDecoder(res.Body).Decode(&es)
	return es
}

func showEvents(t *testing.T, addr string) {
	if !t.Failed() {
		return
	}
	for _, e := range events(addr) {
		t.Logf("  %s %s %s %s %s %s %s", e.At.Format("05.000"), e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message)
	}
}

func answered(t *testing.T, addr, model string) {
	t.Helper()
	if status, body := postChat(addr, model); status != 200 || !strings.Contains(body, "hi") {
		t.Fatalf("answered %d %s", status, body)
	}
}

// readyOn returns the id of a READY replica on node, "" if there is none.
func readyOn(addr, node string) (id string) {
	for _, r := range replicas(addr) {
		if r.State == functions.Ready && r.Node == node {
			return r.ID
		}
	}
	return ""
}

// returns is the orphan timeout in tests that restart a killed agent or server: many times
// what a program takes to start.
const returns = 15 * time.Second

// TestKillServer: a restarted server adopts its engines; without a restart they end after
// the orphan timeout.
func TestKillServer(t *testing.T) {
	t.Parallel()
	m, tag := tagged(t, "x", 0)
	c := serverConfig{Addr: freeAddr(t), Data: t.TempDir(), Memory: 1 << 30, Orphan: returns, Models: []*functions.Model{m}}
	first := begin(t, "test-server", c)
	waitReady(t, c.Addr)
	answered(t, c.Addr, "x")
	id, pids := readyOn(c.Addr, "here"), engines(tag)
	if id == "" || len(pids) != 1 {
		t.Fatalf("replica %q, engines %v", id, pids)
	}
	first.kill()

	second := begin(t, "test-server", c)
	defer showEvents(t, c.Addr)
	waitReady(t, c.Addr)
	testkit.Eventually(t, "the engine is adopted", func() bool { return readyOn(c.Addr, "here") == id })
	answered(t, c.Addr, "x")
	if now := engines(tag); len(now) != 1 || now[0] != pids[0] {
		t.Fatalf("engines %v, were %v", now, pids)
	}
	if b, err := os.ReadFile(filepath.Join(c.Data, "epoch")); err != nil || strings.TrimSpace(string(b)) != "2" {
		t.Fatalf("epoch %q %v", b, err)
	}
	second.kill()
	testkit.Eventually(t, "nothing is left of a server that does not return", func() bool {
		return len(engines(tag)) == 0 && len(processesSpeaking(c.Data)) == 0
	})
}

// TestKillEngine: a killed engine leaves the routes, and the next request starts another.
func TestKillEngine(t *testing.T) {
	t.Parallel()
	m, tag := tagged(t, "x", 0)
	c := serverConfig{Addr: freeAddr(t), Data: t.TempDir(), Memory: 1 << 30, Orphan: 3 * time.Second, Models: []*functions.Model{m}}
	srv := begin(t, "test-server", c)
	defer showEvents(t, c.Addr)
	waitReady(t, c.Addr)
	answered(t, c.Addr, "x")
	pids := engines(tag)
	if len(pids) != 1 {
		t.Fatalf("engines %v", pids)
	}
	syscall.Kill(pids[0], syscall.SIGKILL)
	testkit.Eventually(t, "it is not READY any more", func() bool { return len(replicas(c.Addr)) == 0 })
	answered(t, c.Addr, "x")
	if now := engines(tag); len(now) != 1 || now[0] == pids[0] {
		t.Fatalf("engines %v after %v", now, pids)
	}
	srv.Process.Signal(syscall.SIGTERM)
	if err := srv.waitExit(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	testkit.Eventually(t, "nothing is left", func() bool { return len(engines(tag)) == 0 && len(processesSpeaking(c.Data)) == 0 })
}

// TestKillAgent: a restarted agent adopts its engines. Without a restart its replicas
// start elsewhere, and its engines end by themselves.
func TestKillAgent(t *testing.T) {
	t.Parallel()
	m, tag := tagged(t, "x", 1)
	c := serverConfig{Addr: freeAddr(t), Data: t.TempDir(), Memory: 1 << 30, Orphan: 3 * time.Second, Models: []*functions.Model{m}}
	srv := begin(t, "test-server", c)
	defer showEvents(t, c.Addr)
	waitReady(t, c.Addr)
	node := func(name string) agentConfig {
		return agentConfig{Name: name, Data: t.TempDir(), Server: "http://" + c.Addr, GPUs: 1, Memory: 1 << 30, Orphan: returns}
	}
	b := node("b")
	agentB := begin(t, "test-agent", b)
	testkit.Eventually(t, "b joins", func() bool {
		return slices.ContainsFunc(events(c.Addr), func(e functions.Event) bool { return e.Kind == "node_joined" && e.Node == "b" })
	})
	answered(t, c.Addr, "x")
	id, pids := readyOn(c.Addr, "b"), engines(tag)
	if id == "" || len(pids) != 1 {
		t.Fatalf("replica %q, engines %v", id, pids)
	}
	agentB.kill()
	answered(t, c.Addr, "x") // its engine still serves
	agentB = begin(t, "test-agent", b)
	testkit.Eventually(t, "b returns with it", func() bool {
		for _, e := range events(c.Addr) {
			if e.Kind == "node_lost" || e.Kind == "ended" {
				t.Fatalf("%+v", e)
			}
		}
		return strings.Count(agentB.out.String(), "joined") > 0 && readyOn(c.Addr, "b") == id
	})
	answered(t, c.Addr, "x")
	if now := engines(tag); len(now) != 1 || now[0] != pids[0] {
		t.Fatalf("engines %v, were %v", now, pids)
	}

	other := begin(t, "test-agent", node("c"))
	testkit.Eventually(t, "c joins", func() bool { return strings.Contains(other.out.String(), "joined") })
	agentB.kill()
	testkit.Eventually(t, "b is lost", func() bool { return strings.Contains(fmt.Sprint(events(c.Addr)), "node_lost") })
	answered(t, c.Addr, "x")
	if readyOn(c.Addr, "c") == "" {
		t.Fatal("it is not placed elsewhere")
	}
	testkit.Eventually(t, "the engine of the lost agent ends",
		func() bool { return len(engines(tag)) == 1 && len(processesSpeaking(b.Data)) == 0 })

	other.Process.Signal(syscall.SIGTERM)
	if err := other.waitExit(); err != nil {
		t.Errorf("the agent after SIGTERM: %v", err)
	}
	srv.Process.Signal(syscall.SIGTERM)
	if err := srv.waitExit(); err != nil {
		t.Errorf("the server after SIGTERM: %v", err)
	}
	testkit.Eventually(t, "nothing is left", func() bool { return len(engines(tag)) == 0 && len(processesSpeaking(c.Data)) == 0 })
}
