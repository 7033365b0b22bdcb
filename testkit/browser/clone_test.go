package browser

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// firstAnswer does what a newcomer does and returns how long it took: git clone, make run,
// then in a browser the playground, the model, a text, and its whole answer. cache is the
// folder of compiled packages; "" is the machine's.
func firstAnswer(t *testing.T, cache string) time.Duration {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	clone := filepath.Join(t.TempDir(), "thaw")
	b := openBlank(t)
	began := time.Now()
	if out, err := exec.Command("git", "clone", "-q", repository, clone).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v\n%s", err, out)
	}
	var log bytes.Buffer
	run := exec.Command("make", "run", "ADDR="+address)
	run.Dir, run.Stdout, run.Stderr = clone, &log, &log
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cache != "" {
		run.Env = append(os.Environ(), "GOCACHE="+cache)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); run.Wait() }()
	t.Cleanup(func() {
		syscall.Kill(-run.Process.Pid, syscall.SIGTERM)
		<-ended
	})
	page := "http://" + address + "/ui/"
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		if res, err := http.Get(page); err == nil {
			res.Body.Close()
			break
		}
		select {
		case <-look.C:
		case <-ended:
			t.Fatalf("make run has ended\n%s", log.Bytes())
		}
	}
	b.do(chromedp.Navigate(page))
	b.press("nav a", "Playground")
	b.write("input[list=names]", "tiny")
	b.write("#message", "What is thaw?")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the answer is complete", "document.querySelectorAll('.turn').length === 2 && document.querySelector('.caret') === null && document.querySelectorAll('.turn p')[1].textContent.length > 20")
	took := time.Since(began)
	b.wantNoFaults()
	b.sees("The cold start in full")
	return took
}

// TestFirstAnswer: the first commands of the README and the playground lead to an answer.
func TestFirstAnswer(t *testing.T) {
	t.Log(firstAnswer(t, ""))
}
