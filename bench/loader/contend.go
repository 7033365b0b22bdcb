package loader

import (
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
	"github.com/thaw-dev/thaw/loader/azure"
	"github.com/thaw-dev/thaw/loader/store"
)

// Names of the contenders, and of the ceilings that are programs of the same kind.
const (
	Thaw         = "thaw"
	AzblobTuned  = "azblob tuned"
	Azblob       = "azblob default"
	Curl         = "curl"
	Aria2        = "aria2c -x16"
	Link         = "link"          // received and dropped
	LinkAndWrite = "link and disk" // received and written
)

// Download is one download of one contender, in the process that is it.
type Download struct {
	With    string // one of the names above, of those that are Go
	Server  string // http://HOST:PORT
	Size    int64
	MD5     bool
	Into    string // a folder: the store of thaw, or where the file goes
	Profile string // file for a processor profile; may be empty
}

// connection is the connection string of the server.
func connection(server string) string {
	return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;BlobEndpoint=%s/%s;", account, accessKey, server, account)
}

// Run downloads, and prints the path of the weights.
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
	case Thaw:
		path, err = d.thaw(ctx)
	case Azblob:
		err = d.azblob(ctx, path, nil, nil)
	case AzblobTuned:
		t := &http.Transport{
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64,
			ReadBufferSize: 256 << 10, DisableCompression: true,
		}
		defer t.CloseIdleConnections()
		err = d.azblob(ctx, path, &azblob.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: t}, Telemetry: policy.TelemetryOptions{Disabled: true}}},
			&blob.DownloadFileOptions{BlockSize: 8 << 20, Concurrency: 32})
	case Link:
		err = d.plain(ctx, nil)
	case LinkAndWrite:
		var f *os.File
		if f, err = os.Create(path); err != nil {
			return err
		}
		defer f.Close()
		err = d.plain(ctx, f)
	default:
		return fmt.Errorf("there is no contender %q", d.With)
	}
	if err == nil {
		_, err = fmt.Fprintln(stdout, path)
	}
	return err
}

// thaw stages as a node does.
func (d Download) thaw(ctx context.Context) (string, error) {
	st, err := store.Open(store.Options{Dir: d.Into})
	if err != nil {
		return "", err
	}
	src := azure.New(azure.Options{Getenv: func(name string) string {
		if name == "AZURE_STORAGE_CONNECTION_STRING" {
			return connection(d.Server)
		}
		return ""
	}})
	defer src.Close()
	l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"az": src}})
	defer l.Close()
	s, err := l.Stage(ctx, location(d.Size, d.MD5), loader.StageOptions{})
	if err != nil {
		return "", err
	}
	defer s.Release()
	c, err := s.Wait(ctx)
	if err != nil {
		return "", err
	}
	defer c.Lease.Release()
	return filepath.Join(c.Path, weights), nil
}

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

// plainConns receive at once where nothing is computed: enough for every core
// to have something to do.
const plainConns = 4

// plain receives with as little as a program can do: no HTTP library, one
// buffer for each connection; and writes what came, when there is a file.
func (d Download) plain(ctx context.Context, f *os.File) error {
	addr := strings.TrimPrefix(d.Server, "http://")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range int64(plainConns) {
		wg.Go(func() {
			if err := d.piece(ctx, addr, f, d.Size*i/plainConns, d.Size*(i+1)/plainConns); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (d Download) piece(ctx context.Context, addr string, f *os.File, from, to int64) error {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	_, err = fmt.Fprintf(c, "GET /%s/%s/%s/%s HTTP/1.1\r\nHost: %s\r\nRange: bytes=%d-%d\r\n\r\n", account, container, folder(d.Size, d.MD5), weights, addr, from, to-1)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	n, body := 0, []byte(nil)
	for body == nil {
		m, err := c.Read(buf[n:])
		if err != nil {
			return err
		}
		n += m
		if head, after, ok := strings.Cut(string(buf[:min(n, 8192)]), "\r\n\r\n"); ok {
			if !strings.Contains(head, " 206 ") {
				return fmt.Errorf("the server says %.60q", head)
			}
			body = buf[min(n, 8192)-len(after) : n]
		} else if n >= 8192 {
			return fmt.Errorf("the server's head has no end")
		}
	}
	for {
		if f != nil {
			if _, err := f.WriteAt(body, from); err != nil {
				return err
			}
		}
		if from += int64(len(body)); from >= to {
			return nil
		}
		m, err := c.Read(buf[:min(int64(len(buf)), to-from)])
		if err != nil {
			return err
		}
		body = buf[:m]
	}
}
