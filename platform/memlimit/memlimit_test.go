package memlimit

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// The runtime's limit stays as GOMEMLIMIT set it; without it, it is the plan's.
func TestApplyKeepsTheEnvironment(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for value, set := range map[string]int64{"off": math.MaxInt64, "400MiB": 400 << 20, "": math.MaxInt64} {
		t.Setenv("GOMEMLIMIT", value)
		debug.SetMemoryLimit(set) // as the runtime does at the start
		plan := Apply(Alone, slog.New(slog.DiscardHandler))
		want := set
		if value == "" {
			want = plan.Limit
		}
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("GOMEMLIMIT=%s: the limit is %d, want %d", value, got, want)
		}
	}
}

// TestFewFiles: where few files may be open, connections take three quarters of them, and
// leave the others to engines and the store.
func TestFewFiles(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = 256
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	if plan := Apply(Alone, slog.New(slog.DiscardHandler)); plan.Connections != 192 {
		t.Errorf("%d connections of 256 files, want 192", plan.Connections)
	}
}

func TestDivide(t *testing.T) {
	const mi, gi = int64(1 << 20), int64(1 << 30)
	for _, row := range []struct {
		name                  string
		share                 Share
		given, group, machine int64
		want                  Plan
	}{
		{"an activator of the manifests", Alone, 0, gi, 64 * gi, Plan{896 * mi, "cgroup", 224 * mi, 10752}},
		{"a controller of the manifests", Alone, 0, 512 * mi, 64 * gi, Plan{448 * mi, "cgroup", 112 * mi, 5376}},
		{"no cgroup", Alone, 0, 0, 16 * gi, Plan{14 * gi, "machine", 2 * gi, 172032}}, // 3.5 GiB of bodies would be more than the most
		{"a cgroup larger than the machine", Alone, 0, 64 * gi, gi, Plan{896 * mi, "machine", 224 * mi, 10752}},
		{"GOMEMLIMIT decides", Alone, 400 * mi, gi, gi, Plan{400 * mi, "GOMEMLIMIT", 100 * mi, 4800}},
		{"GOMEMLIMIT decides beside engines too", BesideEngines, 400 * mi, gi, gi, Plan{400 * mi, "GOMEMLIMIT", 100 * mi, 4800}},
		{"beside engines", BesideEngines, 0, 0, 16 * gi, Plan{3584 * mi, "machine", 896 * mi, 43008}},
		{"little, beside engines", BesideEngines, 0, 256 * mi, 16 * gi, Plan{128 * mi, "cgroup", 32 * mi, 1536}},
		{"too little for that", BesideEngines, 0, 64 * mi, 16 * gi, Plan{56 * mi, "cgroup", 14 * mi, 672}},
		{"nothing known", Alone, 0, 0, 0, Plan{3584 * mi, "default", 896 * mi, 43008}},
	} {
		got := divide(row.share, row.given, row.group, row.machine)
		if got != row.want {
			t.Errorf("%s: %+v, want %+v", row.name, got, row.want)
		}
		if sum := got.Bodies + int64(got.Connections)*perConnection; sum > got.Limit/8*5 {
			t.Errorf("%s: the parts are %d bytes of %d", row.name, sum, got.Limit)
		}
	}
}

// Little memory in use lets 32 MiB of garbage come, at most four times what is in use and at
// most an eighth of the limit; much lets as much come again.
func TestPercent(t *testing.T) {
	const mi = int64(1 << 20)
	for _, row := range []struct {
		limit, inUse int64
		want         int
	}{
		{3584 * mi, 0, 400},
		{3584 * mi, 4 * mi, 400},
		{3584 * mi, 8 * mi, 400},
		{3584 * mi, 16 * mi, 200},
		{3584 * mi, 32 * mi, 100},
		{3584 * mi, 1000 * mi, 100},
		{128 * mi, 8 * mi, 200},
		{64 * mi, 8 * mi, 100},
	} {
		if got := (Plan{Limit: row.limit}).percent(row.inUse); got != row.want {
			t.Errorf("%d MiB of %d in use: %d percent, want %d", row.inUse/mi, row.limit/mi, got, row.want)
		}
	}
}

// The pace follows the memory in use, and ends with its context; GOGC turns it off.
func TestPaceCollector(t *testing.T) {
	plan := Plan{Limit: 1 << 30}
	percent := func() int {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return int(s[0].Value.Uint64())
	}
	before := percent()
	defer debug.SetGCPercent(before)
	for _, given := range []string{"100", ""} {
		t.Setenv("GOGC", given)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- plan.PaceCollector(ctx) }()
		if given == "" {
			testkit.Eventually(t, "little memory is in use", func() bool { return percent() > 100 })
			used := make([]byte, 64<<20)
			runtime.GC()
			testkit.Eventually(t, "much memory is in use", func() bool { return percent() == 100 })
			runtime.KeepAlive(used)
			cancel()
		}
		if err := <-done; err != nil || percent() != 100 {
			t.Errorf("GOGC=%s: %v, %d percent at the end", given, err, percent())
		}
		cancel()
	}
}
