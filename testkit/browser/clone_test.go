package browser

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	clone := filepath.Join(t.TempDir(), "thaw")
	b := openBlank(t)
	began := time.Now()
	if out, err := exec.Command("git", "clone", "-q", repository, clone).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v\n%s", err, out)
	}
	run := exec.Command("make", "run", "ADDR=127.0.0.1:0")
	run.Dir = clone
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cache != "" {
		run.Env = append(os.Environ(), "GOCACHE="+cache)
	}
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var messages bytes.Buffer
	run.Stderr = &messages
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-run.Process.Pid, syscall.SIGTERM)
		run.Wait()
		if t.Failed() {
			t.Logf("make run: %s", messages.Bytes())
		}
	})
	var page string
	for lines := bufio.NewScanner(out); page == ""; {
		if !lines.Scan() {
			t.Fatal("make run has ended")
		}
		if at, ok := strings.CutPrefix(lines.Text(), "thaw serves on "); ok {
			page = at + "/ui/"
		}
	}
	go io.Copy(io.Discard, out)
	b.do(chromedp.Navigate(page))
	b.press("nav a", "Playground")
	b.write("input[list=names]", "tiny")
	b.write("#message", "What is thaw?")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the answer is complete", "document.querySelectorAll('.turn').length === 2 && document.querySelector('.caret') === null && "+
		"document.querySelectorAll('.turn p')[1].textContent.length > 20")
	took := time.Since(began)
	b.wantNoFaults()
	b.sees("The cold start in full")
	return took
}

// TestFirstAnswer: the first commands of the README and the playground lead to an answer.
func TestFirstAnswer(t *testing.T) {
	t.Log(firstAnswer(t, ""))
}
