package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/fake"
)

// Options of Run. A count of 0 skips its part.
type Options struct {
	Self   string // this program: the fake engine and the plain ReverseProxy
	Thaw   string // bin/thaw, the platform
	Dir    string // scratch folder of the benchmark
	Nginx  string // peer programs; empty: searched on PATH
	Router string

	Rounds   int // of each load on each gateway
	JSON     int // plain requests per round
	SSE      int // unpaced streams per round
	Paced    int // streams at 10 ms per chunk per round, 256 concurrent
	Held     int // requests queued at once
	Wakes    int // number of wakes
	Waiters  int // requests queued for one wake
	Turns    int // wakes with Waiters queued
	Progress func(string)
}

const (
	conns      = 32  // connections of the unpaced loads
	pacedConns = 256 // concurrent streams
	bodySize   = 1024
	ownStarts  = 20
)

var (
	warmFunction = functions.Name{Team: functions.DefaultTeam, Name: warmModel}
	held         = functions.Name{Team: functions.DefaultTeam, Name: heldModel}
)

type bench struct {
	Options
	result Result
}

// Run measures what o selects, in this order: CPU time, memory, release, start from
// zero. It ends everything it starts.
func Run(ctx context.Context, o Options, r Result) (Result, error) {
	b := &bench{Options: o, result: r}
	b.result.Engine = "testkit/fake: answers at once, 64 chunks a stream"
	for _, part := range []struct {
		on  bool
		run func(context.Context) error
	}{
		{o.Rounds > 0, b.cpu},
		{o.Held > 0, b.held},
		{o.Wakes > 0, b.wakes},
		{o.Waiters > 0, b.waiters},
	} {
		if !part.on {
			continue
		}
		if err := part.run(ctx); err != nil {
			return b.result, err
		}
	}
	b.result.Goals = checkGoals(b.result)
	return b.result, nil
}

// platform starts `thaw serve` with the benchmark's functions in its own folder, and
// creates a key, so that keys are checked.
func (b *bench) platform(ctx context.Context, name string) (p *served.Platform, key, readyFile string, err error) {
	dir := filepath.Join(b.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", "", err
	}
	functionsDir, readyFile := filepath.Join(dir, "functions"), filepath.Join(dir, "ready")
	if err := writeModels(functionsDir, b.Self, readyFile); err != nil {
		return nil, "", "", err
	}
	// All clients have one address.
	p, err = served.Start(ctx, served.Options{Exe: b.Thaw, Dir: dir, Functions: functionsDir, Args: []string{"--client-share", "100"}})
	if err != nil {
		return nil, "", "", err
	}
	key, err = p.NewKey(ctx, functions.DefaultTeam, "bench")
	if err != nil {
		p.End()
		return nil, "", "", err
	}
	return p, key, readyFile, nil
}

// requestOnce sends one request and checks the answer.
func requestOnce(ctx context.Context, addr string, a load.Request, want []byte) (load.Answer, error) {
	k, err := load.Dial(ctx, addr)
	if err != nil {
		return load.Answer{}, err
	}
	defer func() { k.Close() }()
	answer, err := k.Do(ctx, a.Bytes())
	if err != nil {
		return answer, err
	}
	return answer, load.Exactly(want)(answer)
}

// loads returns the loads of each gateway.
func (b *bench) loads() []loadKind {
	return []loadKind{
		{"JSON", load.Request{Size: bodySize, Prompt: "hi"}, fake.PlainBody(), conns, b.JSON},
		{"SSE, 64 chunks at once", load.Request{Size: bodySize, Prompt: "hi", Stream: true}, fake.StreamBody(64), conns, b.SSE},
		{"SSE, 64 chunks at 10 ms, 256 streams", load.Request{Size: bodySize, Prompt: "@fake delay=10ms", Stream: true}, fake.StreamBody(64), pacedConns, b.Paced},
	}
}

type loadKind struct {
	name    string
	request load.Request
	want    []byte
	conns   int
	n       int
}

func (b *bench) cpu(ctx context.Context) error {
	engineAddr, err := process.FreeAddr()
	if err != nil {
		return err
	}
	engine, err := process.Begin("engine", b.Dir, nil, b.Self, "engine", "--addr", engineAddr)
	if err != nil {
		return err
	}
	defer engine.End(time.Second)
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := engine.WaitHTTP(wait, "http://"+engineAddr+"/health"); err != nil {
		return err
	}

	peers, err := b.peers(ctx, engineAddr)
	for _, p := range peers {
		defer p.end()
	}
	if err != nil {
		return err
	}
	for _, l := range b.loads() {
		if l.n == 0 {
			continue
		}
		costs := make([]Cost, len(peers))
		for round := range b.Rounds {
			for i := range peers {
				// Rotate the first one: none always has the warm caches.
				i = (i + round) % len(peers)
				p := peers[i]
				micros, bad, err := measure(ctx, p, l)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", p.name, l.name, err)
				}
				c := &costs[i]
				c.Gateway, c.Load = p.name, l.name
				c.Micros = append(c.Micros, micros)
				c.Checked += l.n
				c.Wrong += bad
				b.Progress(fmt.Sprintf("%s, round %d of %d: %-12s %7.1f µs", l.name, round+1, b.Rounds, p.name, micros))
			}
		}
		b.result.CPU = append(b.result.CPU, costs...)
	}
	ratios(b.result.CPU)
	return nil
}

// peers starts every gateway that is installed. The caller ends those returned, also
// after an error.
func (b *bench) peers(ctx context.Context, engine string) ([]*peer, error) {
	var peers []*peer
	for _, x := range []struct {
		name, named string
		names       []string
		start       func(ctx context.Context, exe, dir, engine string) (*peer, error)
	}{
		{Nginx, b.Nginx, []string{"nginx", "/usr/sbin/nginx"}, startNginx},
		{ReverseProxy, b.Self, nil, startReverseProxy},
		{VLLMRouter, b.Router, []string{"vllm-router"}, startVLLMRouter},
	} {
		exe, err := program(x.named, x.names...)
		if err != nil {
			return peers, fmt.Errorf("%s: %w", x.name, err)
		}
		if exe == "" {
			b.result.Missing = append(b.result.Missing, x.name)
			b.Progress(x.name + " is not here: not measured")
			continue
		}
		dir := filepath.Join(b.Dir, x.name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return peers, err
		}
		p, err := x.start(ctx, exe, dir, engine)
		if err != nil {
			return peers, err
		}
		peers = append(peers, p)
	}
	// The platform starts its own engine, the same program.
	p, key, _, err := b.platform(ctx, "thaw-cpu")
	if err != nil {
		return peers, err
	}
	pid := p.Process.PID
	peers = append(peers, &peer{name: Thaw, addr: p.Addr, key: key, end: p.End, pids: func() ([]int, error) { return []int{pid}, nil }})
	if _, err := requestOnce(ctx, p.Addr, load.Request{Model: warmModel, Key: key}, fake.PlainBody()); err != nil {
		return peers, fmt.Errorf("wake: %w: %s", err, p.Process.Tail())
	}
	return peers, nil
}

// peerWrong: at most one wrong answer in this many is accepted of a peer, counted and
// shown: net/http's ReverseProxy truncates about one stream in a thousand here. None is
// accepted of thaw.
const peerWrong = 50

// measure runs one load on one gateway and returns the CPU time of its processes in
// microseconds per request, and the number of wrong answers.
func measure(ctx context.Context, p *peer, l loadKind) (micros float64, bad int, err error) {
	l.request.Model, l.request.Key = warmModel, p.key
	req, check := l.request.Bytes(), load.Exactly(l.want)
	measure := func(n int) int {
		if p.name == Thaw {
			return 0
		}
		return max(5, n/peerWrong)
	}
	run := func(n int) error {
		o, err := load.Closed(ctx, p.addr, req, l.conns, n, check)
		bad += o.Bad
		if err == nil && o.Bad > measure(n) {
			err = fmt.Errorf("%d of %d answers are wrong, the first: %w", o.Bad, n, o.FirstBad)
		}
		return err
	}
	if err := run(max(l.n/10, min(l.conns, l.n))); err != nil {
		return 0, bad, err
	}
	pids, err := p.pids()
	if err != nil {
		return 0, bad, err
	}
	before, err := process.CPU(pids...)
	if err != nil {
		return 0, bad, err
	}
	if err := run(l.n); err != nil {
		return 0, bad, err
	}
	after, err := process.CPU(pids...)
	if err != nil {
		return 0, bad, err
	}
	return float64((after - before).Microseconds()) / float64(l.n), bad, nil
}

// own starts the fake engine alone and returns the time from exec to its first complete
// answer: the lower bound of any platform.
func (b *bench) own(ctx context.Context, i int) (float64, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	p, err := process.Begin(fmt.Sprintf("own-%d", i), b.Dir, nil, b.Self, "engine", "--addr", addr)
	if err != nil {
		return 0, err
	}
	defer p.End(time.Second)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		a, err := requestOnce(ctx, addr, load.Request{Model: warmModel}, fake.PlainBody())
		if err == nil {
			return a.End.Sub(began).Seconds(), nil
		}
		if ne := net.Error(nil); ctx.Err() != nil || !errors.As(err, &ne) {
			return 0, fmt.Errorf("the engine alone: %w: %s", err, p.Tail())
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Microsecond):
		}
	}
}
