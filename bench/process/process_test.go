package process

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEndKillsTheGroup(t *testing.T) {
	p, err := Begin("stubborn", t.TempDir(), nil, "/bin/sh", "-c", `trap "" TERM; sleep 60 & echo $!; wait; wait`)
	if err != nil {
		t.Fatal(err)
	}
	var child string
	testkit.Eventually(t, "it says who its child is", func() bool { child = p.Tail(); return child != "" })
	p.End(50 * time.Millisecond)
	// The killed process ends when it is next scheduled; then it is a zombie until
	// its parent reaps it.
	testkit.Eventually(t, "the child is gone", func() (bool, string) {
		b, err := os.ReadFile("/proc/" + child + "/stat")
		return err != nil || strings.Contains(string(b), ") Z "), string(b)
	})
	p.End(0)
}

func TestWaitReturnsExitReason(t *testing.T) {
	p, err := Begin("broken", t.TempDir(), []string{"WHY=no weights"}, "/bin/sh", "-c", `echo "error: $WHY"; exit 3`)
	if err != nil {
		t.Fatal(err)
	}
	defer p.End(0)
	addr, err := FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	if err := p.WaitTCP(ctx, addr); err == nil || !strings.Contains(err.Error(), "no weights") ||
		!strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
	if err := p.WaitHTTP(ctx, "http://"+addr); err == nil {
		t.Error("ready though it ended")
	}
}

func TestBeginFails(t *testing.T) {
	if _, err := Begin("none", t.TempDir(), nil, "/no/such/program"); err == nil {
		t.Error("began")
	}
}

func TestCost(t *testing.T) {
	if runtime.GOOS != "linux" {
		if _, err := CPU(os.Getpid()); !errors.Is(err, ErrNoProc) {
			t.Errorf("got %v", err)
		}
		t.Skip("no /proc here")
	}
	testkit.Eventually(t, "the use of the processor is seen", func() bool {
		cpu, err := CPU(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return cpu > 0
	})
	rss, err := RSS(os.Getpid())
	if err != nil || rss < 1<<20 {
		t.Errorf("RSS %d %v", rss, err)
	}
	pss, err := PSS(os.Getpid())
	if err != nil || pss <= 0 || pss > rss+1<<20 { // it is read later
		t.Errorf("PSS %d of %d, %v", pss, rss, err)
	}
	tree, err := Tree(os.Getppid())
	if err != nil || len(tree) < 2 {
		t.Errorf("Tree %v %v", tree, err)
	}
	if _, err := CPU(1 << 30); err == nil {
		t.Error("a process that is not there has used time")
	}
}
