package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// TestBusyAddress: a server whose address is taken leaves no folder, whose admin token the
// verbs would find and send to the one that has the address.
func TestBusyAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := prepare(t, nil)
	code := run(t.Context(), append(p.args, "--addr", l.Addr().String()), strings.NewReader(""), p.log, p.log)
	if _, err := os.Stat(p.data); code != 1 || !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(p.log.String(), "cannot listen on "+l.Addr().String()) {
		t.Errorf("%d %v %s", code, err, p.log)
	}
}

// TestFoldersRefused: a folder that is none is refused with its path, the cause and the setting.
func TestFoldersRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"serve", "--addr", "127.0.0.1:0", "--data", file},
		{"serve", "--addr", "127.0.0.1:0", "--data", t.TempDir(), "--functions", file},
		{"agent", "--server", "https://127.0.0.1:1", "--data", filepath.Join(file, "d")},
	} {
		var log journal
		setting := args[len(args)-2]
		if code := run(t.Context(), args, strings.NewReader(""), &log, &log); code != 1 || !strings.Contains(log.String(), file) ||
			!strings.Contains(log.String(), "not a directory") || !strings.Contains(log.String(), "hint: "+setting+" DIR") {
			t.Errorf("%s: %d %s", args, code, &log)
		}
	}
}

// TestLinesOfJSON: with --log-format json every line of a server is JSON, of both its outputs.
func TestLinesOfJSON(t *testing.T) {
	p := prepare(t, nil, "--log-format", "json")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, p.args, strings.NewReader(""), p.log, p.log) }()
	testkit.Eventually(t, "it serves", func() bool { return strings.Contains(p.log.String(), `"serving"`) })
	cancel()
	if code := <-ended; code != 0 {
		t.Error(code)
	}
	for line := range strings.Lines(p.log.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("%s", line)
		}
	}
}

// TestBothLoopbacks: a client that knows localhost by its IPv6 address alone is served, by that
// name and by the address; one that has that port already keeps it.
func TestBothLoopbacks(t *testing.T) {
	all, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(all[0].Addr().String())
	for _, l := range all {
		l.Close()
	}
	if len(all) != 2 {
		t.Skip("there is no IPv6 here")
	}
	for _, addr := range []string{"127.0.0.1:" + port, "localhost:" + port} {
		p := start(t, nil, "--addr", addr)
		for host, at := range map[string]string{"127.0.0.1": "127.0.0.1", "[::1]": "::1", "localhost": "::1"} {
			dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(at, port))
			}
			c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
			res, err := c.Get("http://" + host + ":" + port + "/v1/models")
			if err != nil || res.StatusCode != 200 {
				t.Errorf("%s at %s: %v %v", host, addr, res, err)
			} else {
				res.Body.Close()
			}
		}
		p.stop()
	}
	other, err := net.Listen("tcp6", "[::1]:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	p := start(t, nil, "--addr", "127.0.0.1:"+port)
	if p.url != "http://127.0.0.1:"+port {
		t.Error(p.url)
	}
}
