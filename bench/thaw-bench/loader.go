package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/thaw-bench/loader"
	"github.com/thaw-dev/thaw/functions"
)

const aboutLoader = `Measures how bytes come from a blob store to the disk: thaw beside azblob's
DownloadFile, curl and aria2c (those that are found), from one server, in
interleaved rounds, beside the ceilings of the same minute. Writes loader.json
and loader.md. Needs Linux, and room for two downloads in --dir.

Parts (--only): unshaped  a server that is as quick as it goes
                md5       the same where the source keeps an MD5 of the whole
                shaped    a server shaped like an account: a rate per connection,
                          a delay to the first byte, stragglers; from there
                          for the first time, and not
                stormy    that, with storms of 503
                memory    the highest memory at 1 and 4 GiB (--big: 16 GiB too)
                resume    kill -9 in the middle, begun again
                peers     8 cold nodes and one source of 200 MB/s
                stream    first token of ember while its bytes come

Examples:
  bin/thaw-bench loader --out bench/results
  bin/thaw-bench loader --only unshaped --size 1Gi --rounds 3
  bin/thaw-bench loader --quick
`

var loaderParts = []string{"unshaped", "md5", "shaped", "stormy", "memory", "resume", "peers", "stream"}

func runLoader(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := bench.Flags("loader", aboutLoader, stderr)
	quick := f.Bool("quick", false, "little of everything: shows that it works, its numbers mean nothing")
	only := f.String("only", strings.Join(loaderParts, ","), "parts to run")
	rounds := f.Int("rounds", 5, "rounds of each comparison")
	size := functions.Bytes(4 << 30)
	f.TextVar(&size, "size", size, "bytes of one download")
	big := f.Bool("big", false, "measure memory at 16 GiB too; wants that much disk")
	where := f.String("dir", "", "folder on the disk to measure (the system's for temporary files)")
	ram := f.String("ram", inMemory(), "folder in memory, for the stores of many nodes")
	curl := f.String("curl", "", "curl to measure (found on PATH)")
	aria2 := f.String("aria2c", "", "aria2c to measure (found on PATH)")
	thaw := f.String("thaw", filepath.Join("bin", "thaw"), "thaw to measure")
	reportFlags := bench.ReportFlags(f)
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	if *rounds < 1 || *rounds > 1000 {
		return bench.UsageError(stderr, "--rounds: 1 to 1000")
	}
	if size < 8<<20 || size > 1<<40 {
		return bench.UsageError(stderr, "--size: 8Mi to 1Ti")
	}
	o := loader.Options{Rounds: *rounds, Curl: *curl, Aria2: *aria2, Memory: []functions.Bytes{1 << 30, 4 << 30}}
	o.Nodes, o.Peers, o.Stream, o.Boot = 8, 1<<30, 64<<20, 3*time.Second
	if *big {
		o.Memory = append(o.Memory, 16<<30)
	}
	if *quick {
		size, o.Rounds, o.Noise = 64<<20, 1, 32<<20
		o.Memory = []functions.Bytes{64 << 20}
		o.Nodes, o.Peers, o.Stream, o.Boot = 3, 32<<20, 16<<20, 200*time.Millisecond
	}
	o.RAM = *ram
	parts, err := bench.SelectParts(stderr, *only, loaderParts)
	if err != nil {
		return err
	}
	leaveOut(&o, parts, size)
	if o.Self, err = os.Executable(); err != nil {
		return err
	}
	if o.Thaw, err = filepath.Abs(*thaw); err != nil {
		return err
	}
	dir, done, err := bench.ScratchIn(*where, stderr)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	o.Dir = dir
	o.Progress = func(s string) { fmt.Fprintln(stderr, s) }
	r := loader.Result{Provenance: report.NewProvenance(loader.Kind, bench.CommandLine("loader", args), time.Now())}
	if r, err = loader.Run(ctx, o, r); err != nil {
		return err
	}
	return reportFlags.Write("loader", r, r.Goals, stdout, stderr)
}

// leaveOut sets the sizes of the selected parts and clears the others.
func leaveOut(o *loader.Options, parts map[string]bool, size functions.Bytes) {
	if parts["unshaped"] || parts["md5"] {
		o.Unshaped, o.MD5 = size, parts["md5"]
	}
	if parts["shaped"] {
		o.Shaped = size
	}
	if parts["stormy"] {
		o.Stormy = size
	}
	if !parts["memory"] {
		o.Memory = nil
	}
	if parts["resume"] {
		o.Resume = size
	}
	if !parts["peers"] {
		o.Peers = 0
	}
	if !parts["stream"] {
		o.Stream = 0
	}
}

// inMemory returns a folder on a memory file system; "" if none is known.
func inMemory() string {
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		return "/dev/shm"
	}
	return ""
}

func runBlobs(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := bench.Flags("blobs", "A blob server of noise, as quick as it goes or shaped (for the benches).\n", stderr)
	addr := f.String("addr", "127.0.0.1:10000", "address to listen on")
	noise := f.String("noise", "", "file that contents are made of; --make makes it")
	make := f.Bool("make", false, "make that file first")
	files := f.String("files", "", "folder to serve beside it, as the folder files of the container")
	var shape loader.Shape
	shape.Register(f)
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	if *noise == "" {
		return bench.UsageError(stderr, "--noise FILE is needed")
	}
	if *make {
		if err := loader.MakeNoise(*noise); err != nil {
			return err
		}
	}
	return loader.ServeBlobs(ctx, *addr, *noise, *files, shape)
}

func runCeilings(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := bench.Flags("ceilings", "What disk and checksums can do (for the benches).\n", stderr)
	dir := f.String("dir", ".", "folder on the disk")
	size := functions.Bytes(1 << 30)
	f.TextVar(&size, "size", size, "bytes to write")
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	c, err := loader.Machine(*dir, int64(size))
	if err != nil {
		return err
	}
	return bench.Show(stdout, true, c)
}

func runDownload(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := bench.Flags("download", "One download of one contender (for the benches).\n", stderr)
	var d loader.Download
	size := functions.Bytes(1 << 30)
	f.StringVar(&d.With, "with", loader.Thaw, "contender")
	f.StringVar(&d.Server, "server", "http://127.0.0.1:10000", "the blob server of the bench")
	f.TextVar(&size, "size", size, "bytes of the weights")
	f.BoolVar(&d.MD5, "md5", false, "with a digest of the whole at the source")
	f.StringVar(&d.Into, "into", "", "folder")
	f.StringVar(&d.Folder, "folder", "", "another folder of the container than that of --size")
	f.StringVar(&d.Listen, "listen", "", "address to lend to other nodes on; then it stays until it is told to end")
	f.StringVar(&d.Certs, "certs", "", "with --listen: folder with ca.crt, tls.crt and tls.key of the nodes")
	peers := f.String("peers", "", "addresses of other nodes, with commas between")
	f.StringVar(&d.Links, "links", "", "file that keeps what was found out about the link; none when not given")
	f.StringVar(&d.Profile, "profile", "", "write a processor profile into this file")
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	if d.Into == "" {
		return bench.UsageError(stderr, "--into DIR is needed")
	}
	d.Size = int64(size)
	if *peers != "" {
		d.Peers = strings.Split(*peers, ",")
	}
	return d.Run(ctx, stdout)
}
