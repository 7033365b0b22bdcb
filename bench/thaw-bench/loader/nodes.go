package loader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/coldstart"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// peersTotal is the total rate of the source of many nodes.
const peersTotal = 200_000_000

// peers measures one node that stages a model, and then many at once.
func (b *bench) peers(ctx context.Context) error {
	if b.Peers == 0 {
		return nil
	}
	r := &Peers{Bytes: int64(b.Peers), Nodes: b.Nodes, Total: peersTotal}
	for round := range min(b.Rounds, 3) {
		alone, egress, err := b.stageTogether(ctx, 1)
		if err != nil {
			return fmt.Errorf("one node: %w", err)
		}
		r.Alone = append(r.Alone, alone)
		last, all, err := b.stageTogether(ctx, b.Nodes)
		if err != nil {
			return fmt.Errorf("%d nodes: %w", b.Nodes, err)
		}
		r.Last = append(r.Last, last)
		r.Egress = append(r.Egress, float64(all)/float64(r.Bytes))
		b.Progress(fmt.Sprintf("peers, round %d: one node %.2f s (%s sent), the last of %d %.2f s, %s sent: %.2f models",
			round+1, alone, functions.Bytes(egress).Human(), b.Nodes, last, functions.Bytes(all).Human(),
			float64(all)/float64(r.Bytes)))
	}
	b.result.Peers = r
	return nil
}

// stageTogether starts k nodes at once and waits until all have staged the model.
func (b *bench) stageTogether(ctx context.Context, k int) (last float64, egress int64, err error) {
	server, end, err := b.serve(ctx, Shape{Total: peersTotal})
	if err != nil {
		return 0, 0, err
	}
	defer end()
	dir := b.Dir
	if b.RAM != "" {
		if dir, err = os.MkdirTemp(b.RAM, "thaw-bench-"); err != nil {
			return 0, 0, err
		}
		defer os.RemoveAll(dir)
	}
	var addrs []string
	for range k {
		a, err := process.FreeAddr()
		if err != nil {
			return 0, 0, err
		}
		addrs = append(addrs, a)
	}
	certs := filepath.Join(dir, "certs")
	if err := issueCertificates(certs); err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(certs)
	began := time.Now()
	var nodes []*process.Process
	defer func() {
		for _, p := range nodes {
			p.End(time.Second)
		}
	}()
	for i, addr := range addrs {
		b.n++
		into := filepath.Join(dir, fmt.Sprintf("node-%d", b.n))
		if err := os.MkdirAll(into, 0o755); err != nil {
			return 0, 0, err
		}
		defer os.RemoveAll(into)
		others := slices.Concat(addrs[:i], addrs[i+1:])
		argv := append(b.self(Thaw).argv(server, int64(b.Peers), false, into), "--listen", addr, "--certs", certs, "--peers",
			strings.Join(others, ","))
		p, err := process.Begin(fmt.Sprintf("node-%d", b.n), b.Dir, nil, argv...)
		if err != nil {
			return 0, 0, err
		}
		nodes = append(nodes, p)
	}
	timeout := time.NewTimer(b.Each)
	defer timeout.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i, p := range nodes {
		for !strings.HasPrefix(p.Tail(), "/") {
			select {
			case <-tick.C:
			case <-p.Exited():
				return 0, 0, fmt.Errorf("node %d ended: %s", i, p.Tail())
			case <-timeout.C:
				return 0, 0, fmt.Errorf("node %d is not done within %s", i, b.Each)
			case <-ctx.Done():
				return 0, 0, ctx.Err()
			}
		}
		last = time.Since(began).Seconds()
	}
	s, err := stats(ctx, server)
	if err != nil {
		return 0, 0, err
	}
	for i, p := range nodes {
		if err := b.noise.check(p.Tail(), int64(b.Peers), uint64(b.n)); err != nil {
			return 0, 0, fmt.Errorf("node %d: what it has is wrong: %w", i, err)
		}
	}
	return last, s.Bytes, nil
}

// streamShape is a source that takes about four seconds for 64 MiB.
var streamShape = Shape{First: 30 * time.Millisecond, Total: 16 << 20}

// stream wakes an ember model while its bytes are staged, and with local bytes, and
// measures the staging alone.
func (b *bench) stream(ctx context.Context) error {
	if b.Stream == 0 {
		return nil
	}
	files := filepath.Join(b.Dir, "ember")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	size, err := makeModel(files, int64(b.Stream))
	if err != nil {
		return fmt.Errorf("make a model: %w", err)
	}
	shape := streamShape
	if b.Stream < 32<<20 { // a short benchmark runs at a smaller scale
		shape.Total = b.Stream / 2
	}
	server, end, err := b.serve(ctx, shape, "--files", files)
	if err != nil {
		return err
	}
	defer end()
	r := &Streamed{Bytes: size, Total: int64(shape.Total), BootDelay: b.Boot.Seconds()}
	for round := range min(b.Rounds, 3) {
		t, err := b.stageOne(ctx, server, round)
		if err != nil {
			return fmt.Errorf("bring it alone: %w", err)
		}
		r.Download = append(r.Download, t)
		first, boot, err := b.wake(ctx, server, round)
		if err != nil {
			return fmt.Errorf("wake it: %w", err)
		}
		r.First, r.Boot = append(r.First, first), append(r.Boot, boot)
		b.Progress(fmt.Sprintf("stream, round %d: download alone %.2f s, start with local bytes %.2f s, start while they come %.2f s", round+1, t,
			boot, first))
	}
	b.result.Streamed = r
	return nil
}

// makeModel generates a checkpoint of about want bytes.
func makeModel(dir string, want int64) (size int64, err error) {
	s := checkpoint.Shape{Hidden: 512, Inter: 1408, Layers: 1, Heads: 8, KVHeads: 4, Learned: 300, Vocab: 8192, MaxPos: 1024}
	layer := int64(2 * (s.Hidden*s.Hidden*3 + 3*s.Hidden*s.Inter)) // BF16
	s.Layers = int(max(1, (want-int64(2*s.Vocab*s.Hidden))/layer))
	if _, err := checkpoint.Folder(dir, s, "What is thaw? It is what ice does in spring.", 5); err != nil {
		return 0, err
	}
	list, err := os.ReadDir(dir)
	for _, e := range list {
		fi, ferr := e.Info()
		if ferr != nil {
			return 0, ferr
		}
		size += fi.Size()
	}
	return size, err
}

// stageOne measures the staging alone.
func (b *bench) stageOne(ctx context.Context, server string, round int) (float64, error) {
	into := filepath.Join(b.Dir, fmt.Sprintf("alone-%d", round))
	defer os.RemoveAll(into)
	began := time.Now()
	p, err := process.Begin(fmt.Sprintf("alone-%d", round), b.Dir, nil, b.Self, "download", "--with", Thaw, "--server", server, "--folder",
		filesFolder, "--into", into)
	if err != nil {
		return 0, err
	}
	defer p.End(0)
	select {
	case <-p.Exited():
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if _, err := p.Usage(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, p.Tail())
	}
	return time.Since(began).Seconds(), nil
}

// wake starts a platform with an empty store and wakes the model twice: first while its
// bytes are staged, then with local bytes.
func (b *bench) wake(ctx context.Context, server string, round int) (first, boot float64, err error) {
	dir := filepath.Join(b.Dir, fmt.Sprintf("woken-%d", round))
	models := filepath.Join(dir, "functions")
	if err := os.MkdirAll(models, 0o755); err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := fmt.Sprintf("apiVersion: %s\nkind: Model\nmetadata: {name: streamed}\nspec:\n  source: az://%s/%s/%s\n  engine: ember\n  args: "+
		"[--boot-delay, %s]\n  resources: {memory: %s}\n",
		functions.APIVersion, account, container, filesFolder, b.Boot, 4*b.Stream)
	if err := os.WriteFile(filepath.Join(models, "streamed.yaml"), []byte(file), 0o644); err != nil {
		return 0, 0, err
	}
	p, err := served.Start(ctx, served.Options{Exe: b.Thaw, Dir: dir, Functions: models, Env: []string{"AZURE_STORAGE_CONNECTION_STRING=" + connection(server)}})
	if err != nil {
		return 0, 0, err
	}
	defer p.End()
	done, err := coldstart.Run(ctx, p,
		coldstart.Options{Function: functions.Name{Team: functions.DefaultTeam, Name: "streamed"}, Rounds: 2, Each: b.Each})
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, p.Process.Tail())
	}
	return done[0].FirstToken, done[1].FirstToken, nil
}

// issueCertificates writes the certificate that nodes of a cluster share into a folder.
func issueCertificates(dir string) error {
	made, err := mtls.Issue(time.Now(), controlstream.NameLoader)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	leaf := made.Leaves[controlstream.NameLoader]
	for name, b := range map[string][]byte{mtls.RootFile: made.Root, mtls.CertFile: leaf.Cert, mtls.KeyFile: leaf.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}
