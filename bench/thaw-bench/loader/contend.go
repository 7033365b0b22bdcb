package loader

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/platform/nodeloader"
)

// Names of the contenders, and of the ceilings measured by the same kind of program.
const (
	Thaw         = "thaw"
	AzblobTuned  = "azblob tuned"
	Azblob       = "azblob default"
	Curl         = "curl"
	Aria2        = "aria2c -x16"
	ThawAlone    = "thaw, the bytes alone" // without digests, until all bytes are on the disk
	Link         = "link"                  // received and discarded
	LinkAndWrite = "link and cache"        // received and written to the page cache
	LinkAndDisk  = "link and disk"         // received and written with O_DIRECT

	// ThawFirst is thaw without knowledge of the source's link.
	ThawFirst = "thaw, the first time"
)

// Download is one download by one contender, in its own process.
type Download struct {
	With    string // a contender that is written in Go
	Server  string // http://HOST:PORT
	Size    int64
	MD5     bool
	Folder  string   // in the container; empty: that of Size and MD5
	Into    string   // folder of thaw's store, or of the file
	Listen  string   // address on which thaw serves peers; it then runs until it is stopped
	Peers   []string // addresses of other nodes
	Certs   string   // folder with the nodes' certificate; with Listen
	Links   string   // file of link measurements; may be empty
	Profile string   // CPU profile; may be empty
}

// connection is the connection string of the server.
func connection(server string) string {
	return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;BlobEndpoint=%s/%s;", account, accessKey, server, account)
}

// Run downloads and prints the path of the weights. thaw first prints the line of
// reportFormat, unless it lends its blocks to peers.
func (d Download) Run(ctx context.Context, stdout io.Writer) error {
	if d.Profile != "" {
		f, err := os.Create(d.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	path := filepath.Join(d.Into, weights)
	var err error
	switch d.With {
	case Thaw, ThawAlone:
		return d.thaw(ctx, stdout)
	case Azblob:
		err = d.azblob(ctx, path, nil, nil)
	case AzblobTuned:
		t := &http.Transport{
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64,
			ReadBufferSize: 256 << 10, DisableCompression: true,
		}
		defer t.CloseIdleConnections()
		err = d.azblob(ctx, path, &azblob.ClientOptions{ClientOptions: azcore.ClientOptions{
			Transport: &http.Client{Transport: t}, Telemetry: policy.TelemetryOptions{Disabled: true},
		}},
			&blob.DownloadFileOptions{BlockSize: 8 << 20, Concurrency: 32})
	case Link:
		err = d.copyPlain(ctx, nil)
	case LinkAndWrite, LinkAndDisk:
		var f, past *os.File
		if d.With == LinkAndDisk {
			if past, err = createDirect(path); err != nil {
				return err
			}
			defer past.Close()
		}
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return err
		}
		defer f.Close()
		if err = allocate(f, d.Size); err != nil {
			return err
		}
		var to io.WriterAt = f
		if past != nil {
			to = pages{past, f}
		}
		err = d.copyPlain(ctx, to)
	default:
		return fmt.Errorf("there is no contender %q", d.With)
	}
	if err == nil {
		_, err = fmt.Fprintln(stdout, path)
	}
	return err
}

// thaw stages the model as a node does.
func (d Download) thaw(ctx context.Context, stdout io.Writer) error {
	alone := d.With == ThawAlone
	st, err := store.Open(store.Options{Dir: d.Into, NoDigests: alone})
	if err != nil {
		return err
	}
	src := azure.New(azure.Options{Getenv: func(name string) string {
		if name == "AZURE_STORAGE_CONNECTION_STRING" {
			return connection(d.Server)
		}
		return ""
	}})
	defer src.Close()
	o := loader.Options{Store: st, Sources: map[string]loader.Source{"az": src}, Links: d.Links}
	var node *p2p.Node
	var ln net.Listener
	if d.Listen != "" {
		if ln, err = net.Listen("tcp", d.Listen); err != nil {
			return err
		}
		if node, err = d.node(); err != nil {
			return err
		}
		defer node.Close()
		o.Peers = node
	}
	l := loader.New(o)
	defer l.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	if node != nil {
		serveCtx, stop := context.WithCancel(ctx)
		defer stop()
		serving.Go(func() { _ = node.Serve(serveCtx, ln, l) })
	}
	from := location(d.Size, d.MD5)
	if d.Folder != "" {
		from = "az://" + account + "/" + container + "/" + d.Folder
	}
	s, err := l.Stage(ctx, from, loader.StageOptions{})
	if err != nil {
		return err
	}
	defer s.Release()
	events, stop := s.Events()
	defer stop()
	var last loader.Progress
	for last = range events {
		if last.State != loader.Fetching && last.State != loader.Planning && last.State != loader.Waiting {
			break
		}
	}
	landed := time.Now()
	if alone {
		if last.Total == 0 || last.Done != last.Total {
			return fmt.Errorf("not all bytes came: %w", last.Err)
		}
		if err := flush(d.Into); err != nil {
			return err
		}
		return reportTimes(stdout, landed)
	}
	c, err := s.Wait(ctx)
	if err != nil {
		return err
	}
	defer c.Lease.Release()
	if node == nil {
		err = reportTimes(stdout, landed)
	}
	fmt.Fprintln(stdout, filepath.Join(c.Path, weights))
	if node != nil {
		<-ctx.Done()
	}
	return err
}

// node is the part of thaw that exchanges blocks with Peers.
func (d Download) node() (*p2p.Node, error) {
	certs, err := mtls.Open(d.Certs)
	if err != nil {
		return nil, err
	}
	return p2p.New(p2p.Options{ID: d.Listen, URL: "https://" + d.Listen, TLS: nodeloader.PeerTLS(certs.Identity), Nodes: func() []p2p.Peer {
		var out []p2p.Peer
		for _, p := range d.Peers {
			out = append(out, p2p.Peer{ID: p, URL: "https://" + p})
		}
		return out
	}}), nil
}

// reportTimes prints four values: when every block had arrived with a valid checksum, when
// all were durable (for a staging: READY), the CPU time until then, and the bytes that
// this process has read from the disk.
func reportTimes(stdout io.Writer, landed time.Time) error {
	now, used := time.Now(), processor()
	_, err := fmt.Fprintf(stdout, reportFormat, landed.UnixNano(), now.UnixNano(), used.Nanoseconds(), bytesRead())
	return err
}

const reportFormat = "landed %d %d %d %d\n"

func location(size int64, md5 bool) string {
	return "az://" + account + "/" + container + "/" + folder(size, md5)
}

func (d Download) azblob(ctx context.Context, path string, co *azblob.ClientOptions, o *blob.DownloadFileOptions) error {
	c, err := azblob.NewClientFromConnectionString(connection(d.Server), co)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = c.DownloadFile(ctx, container, folder(d.Size, d.MD5)+"/"+weights, f, o)
	return err
}

// plainConns is the number of connections of plain: enough to keep every core busy.
const (
	plainConns = 4
	plainBlock = 4 << 20
)

// copyPlain receives at the least possible cost: no HTTP library, one buffer per connection.
// It writes to f if f is not nil.
func (d Download) copyPlain(ctx context.Context, f io.WriterAt) error {
	addr := strings.TrimPrefix(d.Server, "http://")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range int64(plainConns) {
		wg.Go(func() {
			if err := d.piece(ctx, addr, f, bound(d.Size, i), bound(d.Size, i+1)); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// pages is a file whose whole pages are written with O_DIRECT, and the partial last one
// through the cache.
type pages struct{ past, through *os.File }

func (p pages) WriteAt(b []byte, at int64) (int, error) {
	whole := len(b) &^ (1<<12 - 1)
	n, err := p.past.WriteAt(b[:whole], at)
	if err != nil || whole == len(b) {
		return n, err
	}
	k, err := p.through.WriteAt(b[whole:], at+int64(whole))
	return n + k, err
}

// bound returns the start of piece i of a file, at whole blocks.
func bound(size, i int64) int64 {
	if i == plainConns {
		return size
	}
	return size * i / plainConns / plainBlock * plainBlock
}

func (d Download) piece(ctx context.Context, addr string, f io.WriterAt, from, to int64) error {
	if from >= to {
		return nil
	}
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	_, err = fmt.Fprintf(c, "GET /%s/%s/%s/%s HTTP/1.1\r\nHost: %s\r\nRange: bytes=%d-%d\r\n\r\n", account, container, folder(d.Size, d.MD5),
		weights, addr, from, to-1)
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(c, 4096)
	status, err := in.ReadString('\n')
	if err == nil && !strings.Contains(status, " 206 ") {
		err = fmt.Errorf("the server says %.60q", status)
	}
	if err != nil {
		return err
	}
	for line := status; strings.TrimSpace(line) != ""; {
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
	}
	// Whole blocks, as O_DIRECT needs; the bytes that bufio has read are part of the
	// first.
	buf := aligned(plainBlock)
	for from < to {
		b := buf[:min(plainBlock, to-from)]
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		if f != nil {
			if _, err := f.WriteAt(b, from); err != nil {
				return err
			}
		}
		from += int64(len(b))
	}
	return nil
}
