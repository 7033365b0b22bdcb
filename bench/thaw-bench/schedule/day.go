package schedule

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Day is the cost of simulating a day in its own process.
type Day struct {
	Requests int64   `json:"requests"`
	Models   int     `json:"models"`
	GPUs     int     `json:"gpus"`
	Wall     float64 `json:"wall_seconds"`
	CPU      float64 `json:"cpu_seconds"`
	RSS      int64   `json:"max_rss_bytes"`
	Cold     int64   `json:"cold"`
	P99      float64 `json:"ttft_p99_seconds"`
}

// simulateDay runs `thaw simulate` as a user would.
func simulateDay(ctx context.Context, o Options) (*Day, error) {
	hosts := max(1, o.Models/80)
	file := filepath.Join(o.Dir, "fleet.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "nodes: [{name: h100, count: %d, gpus: 8}]\n", hosts), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, o.Exe, "simulate", "--fleet", file,
		"--trace", fmt.Sprintf("gen:models=%d,requests=%d,hours=24,zipf=1.1,diurnal=0.5,teams=20", o.Models, o.Day), "-o", "json", "--quiet")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %.500s", err, errs.Bytes())
	}
	d := &Day{Models: o.Models, GPUs: 8 * hosts, Wall: time.Since(began).Seconds()}
	d.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		d.RSS = int64(u.Maxrss)
		if runtime.GOOS != "darwin" { // macOS reports bytes
			d.RSS <<= 10
		}
	}
	var got struct {
		Items []struct {
			Requests int64 `json:"requests"`
			Cold     int64 `json:"cold"`
			TTFT     struct {
				P99 float64 `json:"p99"`
			} `json:"ttft_seconds"`
		} `json:"items"`
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Items) != 1 {
		return nil, fmt.Errorf("thaw simulate printed no result: %v", err)
	}
	d.Requests, d.Cold, d.P99 = got.Items[0].Requests, got.Items[0].Cold, got.Items[0].TTFT.P99
	return d, nil
}
