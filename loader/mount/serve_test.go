package mount

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// served is an endpoint and a client of it.
func served(t *testing.T, src Bytes, files []File) *http.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	e, err := Serve(socket, files, src, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(func() { tr.CloseIdleConnections(); e.Close(); e.Close() })
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

func httpGet(t *testing.T, c *http.Client, method, name, rng string) (status int, body []byte, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://thaw/"+name, nil)
	if err != nil {
		return 0, nil, err
	}
	if rng != "" {
		req.Header.Set("Range", rng)
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func TestServe(t *testing.T) {
	want := random(3<<20 + 5)
	src := newTap(map[string][]byte{"w": want, "a/b.json": []byte("{}")})
	src.open("a/b.json", 2, nil)
	c := served(t, src, src.list())
	if status, b, err := httpGet(t, c, "GET", "a/b.json", ""); status != 200 || string(b) != "{}" || err != nil {
		t.Error(status, string(b), err)
	}
	for _, x := range []struct {
		method, name string
		want         int
	}{{"GET", "x", 404}, {"GET", "a", 404}, {"GET", "../w", 404}, {"POST", "w", 405}, {"HEAD", "w", 200}} {
		if status, _, err := httpGet(t, c, x.method, x.name, ""); status != x.want || err != nil {
			t.Errorf("%s %s: %d, %v", x.method, x.name, status, err)
		}
	}
	got := make(chan []byte)
	go func() {
		status, b, err := httpGet(t, c, "GET", "w", "bytes=7-")
		if status != 206 || err != nil {
			t.Error(status, err)
		}
		got <- b
	}()
	src.open("w", 1<<20, nil)
	src.open("w", int64(len(want)), nil)
	if !bytes.Equal(<-got, want[7:]) {
		t.Error("other bytes")
	}
	if status, _, _ := httpGet(t, c, "GET", "w", "bytes=99999999-"); status != 416 {
		t.Error(status)
	}
}

// A failure half-way is an error, never a short file.
func TestServeFails(t *testing.T) {
	src := newTap(map[string][]byte{"w": random(1 << 20)})
	src.open("w", 1<<19, nil)
	c := served(t, src, src.list())
	got := make(chan error)
	go func() {
		_, _, err := httpGet(t, c, "GET", "w", "")
		got <- err
	}()
	testkit.Eventually(t, "two reads of the source", func() bool { src.mu.Lock(); defer src.mu.Unlock(); return len(src.reads) > 1 })
	src.open("w", 1<<19, errors.New("the source is gone"))
	if err := <-got; err == nil {
		t.Error("half of it, and no error")
	}
}
