package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/bench/process"
)

// Names of the gateways.
const (
	Thaw         = "thaw"
	Nginx        = "nginx"
	ReverseProxy = "ReverseProxy"
	VLLMRouter   = "vllm-router"
)

// peer is one gateway in front of the engine.
type peer struct {
	name string
	addr string
	pids func() ([]int, error)
	key  string
	end  func()
}

// nginxConf is a usual proxy configuration for streams: keep-alive to the engine, no
// buffering, no access log (thaw writes one).
const nginxConf = `daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log stderr warn;
%[4]s
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  client_max_body_size 32m; client_body_buffer_size 64k;
  keepalive_requests 1000000;
  upstream engine { server %[2]s; keepalive 512; keepalive_requests 1000000; }
  server {
    listen %[3]s;
    location / {
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 300s;
    }
  }
}
`

func startNginx(ctx context.Context, exe, dir, engine string) (*peer, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return nil, err
	}
	user := ""
	if os.Geteuid() == 0 { // its workers must be able to read the folder
		user = "user root;"
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, engine, addr, user), 0o600); err != nil {
		return nil, err
	}
	return begin(ctx, Nginx, dir, addr, exe, "-p", dir, "-c", conf)
}

func startReverseProxy(ctx context.Context, self, dir, engine string) (*peer, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return nil, err
	}
	return begin(ctx, ReverseProxy, dir, addr, self, "proxy", "--addr", addr, "--to", engine)
}

func startVLLMRouter(ctx context.Context, exe, dir, engine string) (*peer, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return nil, err
	}
	metrics, err := process.FreeAddr()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	_, metricsPort, err := net.SplitHostPort(metrics)
	if err != nil {
		return nil, err
	}
	return begin(ctx, VLLMRouter, dir, addr, exe, "--host", host, "--port", port, "--prometheus-port", metricsPort,
		"--worker-urls", "http://"+engine, "--policy", "round_robin", "--log-level", "error", "--max-concurrent-requests", "100000")
}

func begin(ctx context.Context, name, dir, addr string, argv ...string) (*peer, error) {
	p, err := process.Begin(name, dir, nil, argv...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("not within a minute"))
	defer cancel()
	if err := p.WaitHTTP(ctx, "http://"+addr+"/v1/models"); err != nil {
		p.End(time.Second)
		return nil, err
	}
	return &peer{name: name, addr: addr, pids: func() ([]int, error) { return process.Tree(p.PID) }, end: func() { p.End(5 * time.Second) }},
		nil
}

// program returns a peer's program: the one named, which must exist, or the first of
// names on PATH; empty if there is none.
func program(named string, names ...string) (string, error) {
	if named != "" {
		return exec.LookPath(named)
	}
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p, nil
		}
	}
	return "", nil
}

// Proxy serves a plain httputil.ReverseProxy until ctx ends: the simplest gateway in Go.
func Proxy(ctx context.Context, addr, to string) error {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to})
	p.Transport = &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true, IdleConnTimeout: 4 * time.Second}
	p.FlushInterval = -1
	s := &http.Server{Addr: addr, Handler: p, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}
