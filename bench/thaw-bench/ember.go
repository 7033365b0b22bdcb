package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/runtime/ember"
	"github.com/thaw-dev/thaw/runtime/ember/kernel"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// text trains the tokenizer of the random checkpoint.
const text = `The engine starts when a request comes and stops when it is idle. A request waits in the queue, the weights arrive, and the first token goes out. One two three four five six seven eight nine ten. It's cold; we'll see a thaw.`

const aboutEmber = `Measures the embedded engine: exec to first token, tokens per second and CPU, for
the shipped tiny model and for the 135M shape of SmolLM with random weights.

Examples:
  bin/thaw-bench ember
  bin/thaw-bench ember --tiny-only --starts 20
`

// runEmberEngine runs the engine alone, as `thaw engine ember` does.
func runEmberEngine(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if code := ember.Main(ctx, args, os.Getenv, stdout, stderr); code != 0 {
		return fmt.Errorf("the engine ended with %d", code)
	}
	return nil
}

func runEmber(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := bench.Flags("ember", aboutEmber, stderr)
	tiny := f.String("tiny", "functions/shipped/tiny", "`folder` of the shipped checkpoint")
	starts := f.Int("starts", 10, "starts to measure of each model")
	tokens := f.Int("tokens", 128, "tokens of an answer")
	batch := f.Int("batch", 4, "answers at once, for the batched row")
	rounds := f.Int("rounds", 5, "answers to measure one after another; the best counts")
	small := f.Bool("tiny-only", false, "leave the 135M shape out")
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ember-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	models := []struct{ name, dir string }{{"tiny (0.9M)", *tiny}}
	if !*small {
		smol := filepath.Join(dir, "smol")
		if _, err := checkpoint.Folder(smol, checkpoint.Smol, text, 7); err != nil {
			return err
		}
		models = append(models, struct{ name, dir string }{"135M shape, BF16", smol})
	}
	fmt.Fprintf(stdout, "%s, %s/%s, %d processors, kernel %s, load %s\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), kernel.Name(), loadAverage())
	fmt.Fprintln(stdout, "| model | exec to /health 200 | exec to first token | tokens/s, one | CPU ms a token | tokens/s, "+
		fmt.Sprint(*batch)+" at once | prompt tokens/s | memory |")
	fmt.Fprintln(stdout, "| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, m := range models {
		if err := measure(ctx, stdout, m.name, m.dir, *starts, *rounds, *tokens, *batch); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:1], "")
}

// emberEngine is one started process.
type emberEngine struct {
	cmd   *exec.Cmd
	url   string
	began time.Time
}

func startEmber(ctx context.Context, dir string) (*emberEngine, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	e := &emberEngine{cmd: exec.CommandContext(ctx, self, "ember-engine", "--model", dir, "--served-model-name", "m", "--port", "0")}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var log bytes.Buffer
	e.cmd.Stderr = &log
	e.began = time.Now()
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		e.cmd.Wait()
		return nil, fmt.Errorf("engine: %s", strings.TrimSpace(log.String()))
	}
	_, e.url, _ = strings.Cut(strings.TrimSpace(line), "on ")
	return e, nil
}

func (e *emberEngine) stop() error {
	e.cmd.Process.Signal(syscall.SIGTERM)
	return e.cmd.Wait()
}

// healthy polls until the model is loaded.
func (e *emberEngine) healthy() (time.Duration, error) {
	for time.Since(e.began) < time.Minute {
		r, err := http.Get(e.url + "/health")
		if err != nil {
			return 0, err
		}
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			return time.Since(e.began), nil
		}
		time.Sleep(200 * time.Microsecond)
	}
	return 0, fmt.Errorf("not ready after a minute")
}

// answer streams one completion and returns the times of its first and last tokens.
func (e *emberEngine) answer(prompt []int, n int) (first, last time.Duration, err error) {
	b, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true, "stream": true})
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	r, err := http.Post(e.url+"/v1/completions", "application/json", bytes.NewReader(b))
	if err != nil {
		return 0, 0, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(r.Body)
		return 0, 0, fmt.Errorf("%s: %s", r.Status, b)
	}
	s := bufio.NewScanner(r.Body)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if first == 0 && strings.HasPrefix(s.Text(), "data:") {
			first = time.Since(began)
		}
	}
	return first, time.Since(began), s.Err()
}

func (e *emberEngine) cpu() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", e.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	var user, system int64
	f := strings.Fields(rest)
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond // clock ticks of 1/100 s
}

func (e *emberEngine) memory() string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.cmd.Process.Pid))
	if err != nil {
		return "unknown"
	}
	var anon, file int
	for l := range strings.SplitSeq(string(b), "\n") {
		fmt.Sscanf(l, "RssAnon: %d", &anon)
		fmt.Sscanf(l, "RssFile: %d", &file)
	}
	return fmt.Sprintf("%d MiB + %d MiB mapped", anon>>10, file>>10)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func measure(ctx context.Context, w io.Writer, name, dir string, starts, rounds, tokens, batch int) error {
	var ups, firstTokens []time.Duration
	for range starts {
		e, err := startEmber(ctx, dir)
		if err != nil {
			return err
		}
		up, err := e.healthy()
		if err == nil {
			_, _, err = e.answer([]int{5, 6, 7, 8}, 1)
		}
		firstTokens = append(firstTokens, time.Since(e.began))
		ups = append(ups, up)
		if e := e.stop(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
	e, err := startEmber(ctx, dir)
	if err != nil {
		return err
	}
	defer e.stop()
	if _, err := e.healthy(); err != nil {
		return err
	}
	if _, _, err := e.answer([]int{1, 2, 3}, 8); err != nil { // warm-up
		return err
	}
	rate, cost := 0.0, 0.0
	for range rounds {
		c := e.cpu()
		_, last, err := e.answer([]int{1, 2, 3, 4}, tokens)
		if err != nil {
			return err
		}
		// From the request to the last token: the first chunk may hold several tokens.
		if r := float64(tokens) / last.Seconds(); r > rate {
			rate = r
			cost = (e.cpu() - c).Seconds() * 1e3 / float64(tokens)
		}
	}
	sum := 0.0
	for range rounds {
		began := time.Now()
		done := make(chan error, batch)
		for i := range batch {
			go func() {
				_, _, err := e.answer([]int{10 + i, 11, 12, 13}, tokens)
				done <- err
			}()
		}
		for range batch {
			if err := <-done; err != nil {
				return err
			}
		}
		sum = max(sum, float64(batch*tokens)/time.Since(began).Seconds())
	}
	prompt := make([]int, 512)
	for i := range prompt {
		prompt[i] = (i*37 + 5) % 256
	}
	reading := 0.0
	for range rounds {
		first, _, err := e.answer(prompt, 1)
		if err != nil {
			return err
		}
		reading = max(reading, float64(len(prompt))/first.Seconds())
	}
	fmt.Fprintf(w, "| %s | %.1f ms | %.1f ms | %.0f | %.2f | %.0f | %.0f | %s |\n", name,
		median(ups).Seconds()*1e3, median(firstTokens).Seconds()*1e3, rate, cost, sum, reading, e.memory())
	return nil
}
