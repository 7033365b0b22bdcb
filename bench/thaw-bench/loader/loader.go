package loader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// Options of Run. A size or count of 0 skips its part.
type Options struct {
	Self  string // this program: server, thaw's loader, azblob and the ceilings
	Thaw  string // bin/thaw, for measurements of the whole program
	Dir   string // scratch folder of the benchmark, on the disk to measure
	Curl  string // peer programs; empty: searched on PATH
	Aria2 string

	Rounds   int             // of every comparison
	Unshaped functions.Bytes // size of one download
	MD5      bool            // also with a digest of the whole file at the source
	Shaped   functions.Bytes
	Stormy   functions.Bytes
	Memory   []functions.Bytes
	Resume   functions.Bytes
	Peers    functions.Bytes // size of the model staged on every node
	Nodes    int
	RAM      string          // memory folder for the stores of many nodes; empty: Dir
	Stream   functions.Bytes // approximate size of a model for ember
	Boot     time.Duration   // ember's delay before it reads its checkpoint
	Each     time.Duration   // timeout of one download
	Noise    int64           // bytes of the server's noise; 0: the default
	Progress func(string)
}

type bench struct {
	Options
	noise  *noise
	result *Result
	n      int // number of downloads so far: each has its own folder and log
}

// Run measures what o selects and returns r with the results.
func Run(ctx context.Context, o Options, r Result) (Result, error) {
	if o.Noise == 0 {
		o.Noise = noisePeriod
	}
	if o.Each == 0 {
		o.Each = 15 * time.Minute
	}
	b := &bench{Options: o, result: &r}
	n, err := makeNoise(o.Dir, o.Noise)
	if err != nil {
		return r, err
	}
	b.noise = n
	for _, part := range []func(context.Context) error{b.unshaped, b.shaped, b.stormRuns, b.memory, b.resume, b.peers, b.stream} {
		if err := part(ctx); err != nil {
			return r, err
		}
	}
	r.Goals = checkGoals(r)
	return r, nil
}

// serve starts a server of this shape; end stops it. more are additional flags.
func (b *bench) serve(ctx context.Context, shape Shape, more ...string) (url string, end func(), err error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return "", nil, err
	}
	p, err := process.Begin("blobs", b.Dir, nil, slices.Concat([]string{b.Self, "blobs", "--addr", addr, "--noise", b.noise.path},
		shape.flags(), more)...)
	if err != nil {
		return "", nil, err
	}
	url = "http://" + addr
	wait, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("not within 30 s"))
	defer cancel()
	if err := p.WaitHTTP(wait, url+"/stats"); err != nil {
		p.End(time.Second)
		return "", nil, err
	}
	return url, func() { p.End(time.Second) }, nil
}

// stats reads a server's counters.
func stats(ctx context.Context, url string) (s Stats, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/stats", nil)
	if err != nil {
		return s, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	return s, json.NewDecoder(res.Body).Decode(&s)
}

// contender is one program that downloads.
type contender struct {
	name string
	argv func(server string, size int64, md5 bool, into string) []string
}

// self returns a contender that is this program.
func (b *bench) self(name string, more ...string) contender {
	return contender{name, func(server string, size int64, md5 bool, into string) []string {
		return append([]string{b.Self, "download", "--with", name, "--server", server, "--size", functions.Bytes(size).String(),
			fmt.Sprintf("--md5=%t", md5), "--into", into}, more...)
	}}
}

func blobURL(server string, size int64, md5 bool) string {
	return fmt.Sprintf("%s/%s/%s/%s/%s", server, account, container, folder(size, md5), weights)
}

// contenders returns the contenders that are installed.
func (b *bench) contenders() ([]contender, error) {
	out := []contender{b.self(Thaw), b.self(ThawAlone), b.self(AzblobTuned), b.self(Azblob)}
	for _, x := range []struct {
		name, named, prog string
		argv              func(exe, url, into string) []string
	}{
		{Curl, b.Curl, "curl", func(exe, url, into string) []string {
			return []string{exe, "-sSf", "-o", filepath.Join(into, weights), url}
		}},
		{Aria2, b.Aria2, "aria2c", func(exe, url, into string) []string {
			return []string{
				exe, "-x16", "-s16", "--file-allocation=falloc", "--console-log-level=warn", "--summary-interval=0",
				"--download-result=hide", "-d", into, "-o", weights, url,
			}
		}},
	} {
		exe := x.named
		if exe == "" {
			exe = x.prog
		}
		exe, err := exec.LookPath(exe)
		if err != nil {
			if x.named != "" {
				return nil, fmt.Errorf("%s: %w", x.name, err)
			}
			if !slices.Contains(b.result.Missing, x.name) {
				b.result.Missing = append(b.result.Missing, x.name)
				b.Progress(x.name + " is not here: not measured")
			}
			continue
		}
		out = append(out, contender{x.name, func(server string, size int64, md5 bool, into string) []string {
			return x.argv(exe, blobURL(server, size, md5), into)
		}})
	}
	return out, nil
}

// download runs one contender once, in its own temporary folder, and checks the
// downloaded bytes.
func (b *bench) download(ctx context.Context, c contender, server string, size int64, md5 bool) (Trial, error) {
	b.n++
	into := filepath.Join(b.Dir, fmt.Sprintf("into-%d", b.n))
	if err := os.MkdirAll(into, 0o755); err != nil {
		return Trial{}, err
	}
	defer os.RemoveAll(into)
	// Dirty pages of an earlier download must not count.
	if err := flush(b.Dir); err != nil {
		return Trial{}, err
	}
	began := time.Now()
	p, err := process.Begin(fmt.Sprintf("download-%d", b.n), b.Dir, nil, c.argv(server, size, md5, into)...)
	if err != nil {
		return Trial{}, err
	}
	defer p.End(0)
	timeout := time.NewTimer(b.Each)
	defer timeout.Stop()
	select {
	case <-p.Exited():
	case <-ctx.Done():
		return Trial{}, ctx.Err()
	case <-timeout.C:
		return Trial{}, fmt.Errorf("%s is not done within %s: %s", c.name, b.Each, p.Tail())
	}
	t := Trial{Seconds: time.Since(began).Seconds()}
	u, err := p.Usage()
	if err != nil {
		return Trial{}, fmt.Errorf("%s: %w: %s", c.name, err, p.Tail())
	}
	if err := flush(into); err != nil {
		return Trial{}, err
	}
	t.Durable = time.Since(began).Seconds()
	t.CPU = u.CPU.Seconds() / (float64(size) / (1 << 30))
	t.RSS = u.MaxRSS
	if c.name == Link {
		return t, nil
	}
	path := filepath.Join(into, weights)
	if c.name == Thaw || c.name == ThawFirst || c.name == ThawAlone { // it prints its times and the path
		lines := strings.Split(p.Tail(), "\n")
		path = lines[len(lines)-1]
		var at, disk, used int64
		if _, err := fmt.Sscanf(lines[max(0, len(lines)-2)]+"\n", reportFormat, &at, &disk, &used, &t.ReadBack); c.name != ThawAlone &&
			err != nil {
			return Trial{}, fmt.Errorf("%s did not report its times: %w: %s", c.name, err, p.Tail())
		}
		if c.name == ThawAlone {
			if _, err := fmt.Sscanf(path+"\n", reportFormat, &at, &disk, &used, &t.ReadBack); err != nil {
				return Trial{}, fmt.Errorf("%s did not report its times: %w: %s", c.name, err, p.Tail())
			}
		}
		t.Seconds, t.Durable = time.Unix(0, at).Sub(began).Seconds(), time.Unix(0, disk).Sub(began).Seconds()
		t.CPU = time.Duration(used).Seconds() / (float64(size) / (1 << 30))
		if c.name == ThawAlone {
			return t, nil // nothing is published
		}
	}
	if err := b.noise.check(path, size, uint64(b.n)); err != nil {
		return Trial{}, fmt.Errorf("%s: what it brought is wrong: %w", c.name, err)
	}
	return t, nil
}

// ceilingBytes is the number of bytes written and received for a ceiling.
const ceilingBytes = 1 << 30

// ceilings measures the machine's current limits.
func (b *bench) ceilings(ctx context.Context, server string, size int64) (c Ceilings, err error) {
	size = min(size, ceilingBytes)
	if err := flush(b.Dir); err != nil {
		return c, err
	}
	b.n++
	p, err := process.Begin(fmt.Sprintf("ceilings-%d", b.n), b.Dir, nil, b.Self, "ceilings", "--dir", b.Dir, "--size",
		functions.Bytes(size).String())
	if err != nil {
		return c, err
	}
	defer p.End(0)
	select {
	case <-p.Exited():
	case <-ctx.Done():
		return c, ctx.Err()
	}
	if _, err := p.Usage(); err != nil {
		return c, fmt.Errorf("%w: %s", err, p.Tail())
	}
	if err := json.Unmarshal([]byte(p.Tail()), &c); err != nil {
		return c, fmt.Errorf("%w: %s", err, p.Tail())
	}
	link, err := b.download(ctx, b.self(Link), server, size, false)
	if err != nil {
		return c, err
	}
	both, err := b.download(ctx, b.self(LinkAndWrite), server, size, false)
	if err != nil {
		return c, err
	}
	c.Link, c.CPULink = float64(size)/link.Seconds, link.CPU
	c.Copy, c.CPUCopy = float64(size)/both.Seconds, both.CPU
	if c.Direct > 0 {
		past, err := b.download(ctx, b.self(LinkAndDisk), server, size, false)
		if err != nil {
			return c, err
		}
		c.Past, c.CPUPast = float64(size)/past.Durable, past.CPU
	}
	return c, nil
}

// compare runs all contenders in interleaved rounds, each starting with another one,
// with the ceilings of that round.
func (b *bench) compare(ctx context.Context, name string, contenders []contender, shape Shape, size int64, md5 bool) (*Comparison, error) {
	server, end, err := b.serve(ctx, shape)
	if err != nil {
		return nil, err
	}
	defer end()
	free, end2, err := b.serve(ctx, Shape{}) // ceilings are measured without the shape
	if err != nil {
		return nil, err
	}
	defer end2()
	if name == Shaped {
		if _, err := b.download(ctx, contenders[0], server, size, md5); err != nil {
			return nil, err
		}
	}
	cmp := &Comparison{Name: name, Bytes: size, Shape: shape, Rows: make([]Row, len(contenders))}
	for round := range b.Rounds {
		c, err := b.ceilings(ctx, free, size)
		if err != nil {
			return nil, fmt.Errorf("ceilings: %w", err)
		}
		cmp.Ceilings = append(cmp.Ceilings, c)
		b.Progress(fmt.Sprintf("%s, round %d of %d: ceilings: link %s, link and cache %s, link and disk %s, disk direct %s, cached %s",
			name, round+1, b.Rounds, formatRate(c.Link), formatRate(c.Copy), formatRate(c.Past), formatRate(c.Direct),
			formatRate(c.Cached)))
		for i := range contenders {
			i = (i + round) % len(contenders)
			t, err := b.download(ctx, contenders[i], server, size, md5)
			if err != nil {
				return nil, err
			}
			cmp.Rows[i].Contender = contenders[i].name
			cmp.Rows[i].Trials = append(cmp.Rows[i].Trials, t)
			line := fmt.Sprintf("%s, round %d of %d: %-14s %s, on the disk %s, %.2f CPU s/GiB, %s", name, round+1, b.Rounds, contenders[i].name,
				formatRate(float64(size)/t.Seconds), formatRate(float64(size)/t.Durable), t.CPU, functions.Bytes(t.RSS).Human())
			if t.ReadBack > 0 {
				line += fmt.Sprintf("; read from the disk: %s", functions.Bytes(t.ReadBack).Human())
			}
			b.Progress(line)
		}
	}
	cmp.reduce()
	return cmp, nil
}

func (b *bench) unshaped(ctx context.Context) error {
	if b.Unshaped == 0 {
		return nil
	}
	contenders, err := b.contenders()
	if err != nil {
		return err
	}
	c, err := b.compare(ctx, Unshaped, contenders, Shape{}, int64(b.Unshaped), false)
	if err != nil {
		return err
	}
	b.result.Comparisons = append(b.result.Comparisons, c)
	if b.MD5 {
		if c, err = b.compare(ctx, WithMD5, []contender{b.self(Thaw), b.self(AzblobTuned)}, Shape{}, int64(b.Unshaped), true); err != nil {
			return err
		}
		b.result.Comparisons = append(b.result.Comparisons, c)
	}
	return nil
}

func (b *bench) shaped(ctx context.Context) error {
	if b.Shaped == 0 {
		return nil
	}
	contenders, err := b.contenders()
	if err != nil {
		return err
	}
	// A node stages from the same account many times; an uncounted download measures the
	// link.
	links := filepath.Join(b.Dir, "links.json")
	contenders[0], contenders[1] = b.self(Thaw, "--links", links), b.self(ThawAlone, "--links", links)
	first := b.self(Thaw)
	contenders = slices.Insert(contenders, 1, contender{ThawFirst, first.argv})
	c, err := b.compare(ctx, Shaped, contenders, Account, int64(b.Shaped), false)
	if err == nil {
		b.result.Comparisons = append(b.result.Comparisons, c)
	}
	return err
}

// stormRuns measures the contenders at a shaped source with storms of 503.
func (b *bench) stormRuns(ctx context.Context) error {
	if b.Stormy == 0 {
		return nil
	}
	s := Account
	s.Storm, s.Every = 300*time.Millisecond, 2*time.Second
	c, err := b.compare(ctx, WithStorms, []contender{b.self(Thaw), b.self(AzblobTuned)}, s, int64(b.Stormy), false)
	if err == nil {
		b.result.Comparisons = append(b.result.Comparisons, c)
	}
	return err
}

// memory measures thaw's peak memory by the size of the model.
func (b *bench) memory(ctx context.Context) error {
	if len(b.Memory) == 0 {
		return nil
	}
	server, end, err := b.serve(ctx, Shape{})
	if err != nil {
		return err
	}
	defer end()
	for _, size := range b.Memory {
		if left, err := freeBytes(b.Dir); err == nil && left < int64(size)+(4<<30) {
			return fmt.Errorf("memory at %s: only %s are free in %s", size, functions.Bytes(left).Human(), b.Dir)
		}
		t, err := b.download(ctx, b.self(Thaw), server, int64(size), false)
		if err != nil {
			return err
		}
		b.result.Memory = append(b.result.Memory, Memory{Bytes: int64(size), RSS: t.RSS, Seconds: t.Seconds})
		b.Progress(fmt.Sprintf("memory: %s of weights, at most %s of memory, %s", size, functions.Bytes(t.RSS).Human(),
			formatRate(float64(size)/t.Seconds)))
	}
	return nil
}

// resume kills thaw during a download and counts the bytes that the next one reads.
func (b *bench) resume(ctx context.Context) error {
	if b.Resume == 0 {
		return nil
	}
	size := int64(b.Resume)
	// A small send buffer limits the bytes that the server counted but that were never received.
	server, end, err := b.serve(ctx, Shape{Buffer: 128 << 10})
	if err != nil {
		return err
	}
	defer end()
	into, err := os.MkdirTemp(b.Dir, "resumed")
	if err != nil {
		return err
	}
	defer os.RemoveAll(into)
	// The verb itself, as an init container runs it.
	argv := []string{b.Thaw, "pull", location(size, false), "--data", into, "-o", "json"}
	env := []string{"AZURE_STORAGE_CONNECTION_STRING=" + connection(server)}
	p, err := process.Begin("killed", b.Dir, env, argv...)
	if err != nil {
		return err
	}
	defer p.End(0)
	var at Stats
	for tick := time.NewTicker(time.Millisecond); at.Bytes < size/2; {
		select {
		case <-p.Exited():
			tick.Stop()
			return fmt.Errorf("it ended before it could be killed: %s", p.Tail())
		case <-ctx.Done():
			tick.Stop()
			return ctx.Err()
		case <-tick.C:
		}
		if at, err = stats(ctx, server); err != nil {
			tick.Stop()
			return err
		}
	}
	p.End(0) // kill -9
	if at, err = stats(ctx, server); err != nil {
		return err
	}
	began := time.Now()
	again, err := process.Begin("resumed", b.Dir, env, argv...)
	if err != nil {
		return err
	}
	defer again.End(0)
	select {
	case <-again.Exited():
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := again.Usage(); err != nil {
		return fmt.Errorf("the second: %w: %s", err, again.Tail())
	}
	took := time.Since(began)
	after, err := stats(ctx, server)
	if err != nil {
		return err
	}
	lines := strings.Split(again.Tail(), "\n")
	var last functions.StoreProgress
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.State != "ready" {
		return fmt.Errorf("the second ended otherwise than it should: %v: %s", err, again.Tail())
	}
	if err := b.noise.check(filepath.Join(last.Path, weights), size, 1); err != nil {
		return fmt.Errorf("what came after the kill is wrong: %w", err)
	}
	r := &Resumed{Bytes: size, Before: at.Bytes, Kept: int64(last.Resumed), After: after.Bytes - at.Bytes, Seconds: took.Seconds()}
	r.Again, r.RereadShare = float64(r.Before-r.Kept)/float64(size), float64(r.Kept+r.After-size)/float64(size)
	b.result.Resumed = r
	b.Progress(fmt.Sprintf("resume: killed after %s of %s were sent, %s were kept, the second read %s: "+
		"%.2f %% were lost by the kill, %.2f %% more came in vain",
		functions.Bytes(r.Before).Human(), functions.Bytes(size).Human(), functions.Bytes(r.Kept).Human(),
		functions.Bytes(r.After).Human(), 100*r.Again, 100*r.RereadShare))
	return nil
}

func formatRate(rate float64) string { return fmt.Sprintf("%.2f GB/s", rate/1e9) }

// median returns the median of f over list.
func median[T any](list []T, f func(T) float64) float64 {
	var v []float64
	for _, x := range list {
		v = append(v, f(x))
	}
	return report.Quantile(v, 0.5)
}
