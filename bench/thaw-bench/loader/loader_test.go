package loader

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const small = 1 << 20 // bytes of noise

func testNoise(t *testing.T) *noise {
	t.Helper()
	n, err := makeNoise(t.TempDir(), small)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// testServer serves noise until the test ends.
func testServer(t *testing.T, n *noise, files string, shape Shape) (url string, s *server) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = newServer(n, files, shape)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, ln) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String(), s
}

// TestContents: any range equals the same range of the whole file.
func TestContents(t *testing.T) {
	n := testNoise(t)
	f, err := os.Open(n.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 3*small + 777
	whole, err := n.read(f, size, 0, size)
	if err != nil || len(whole) != size {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	for _, r := range [][2]int64{{0, 1}, {0, headSize}, {headSize - 1, headSize + 1}, {headSize, size}, {small - 5, small + 5}, {2 * small, 3 * small}, {size - 1, size}} {
		part, err := n.read(f, size, r[0], r[1])
		if err != nil || !bytes.Equal(part, whole[r[0]:r[1]]) {
			t.Errorf("%v differs (%v)", r, err)
		}
	}
	if err := headercheck.Safetensors(bytes.NewReader(whole), size); err != nil {
		t.Errorf("weights that a loader would refuse: %v", err)
	}
	sum, err := n.md5(size)
	if want := md5.Sum(whole); err != nil || !bytes.Equal(sum, want[:]) {
		t.Errorf("MD5 %x, want %x (%v)", sum, want, err)
	}

	path := filepath.Join(t.TempDir(), "got")
	for name, spoil := range map[string]func([]byte) []byte{
		"":        func(b []byte) []byte { return b },
		"bytes":   func(b []byte) []byte { return b[:size-1] },
		"not tho": func(b []byte) []byte { b[0] ^= 1; return b },
		"tho":     func(b []byte) []byte { b[size-1] ^= 1; return b },
	} {
		if err := os.WriteFile(path, spoil(bytes.Clone(whole)), 0o644); err != nil {
			t.Fatal(err)
		}
		err := n.check(path, size, 1)
		if (err == nil) != (name == "") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("spoilt by %q: %v", name, err)
		}
	}
}

// TestServer: the server implements the subset of the Blob API that downloads need, and
// rejects the rest.
func TestServer(t *testing.T) {
	n := testNoise(t)
	files := t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	url, s := testServer(t, n, files, Shape{})
	const dir = "/benchaccount/weights/2097152/"
	for _, c := range []struct {
		method, path, header string
		status               int
		field, want          string
		body                 int // bytes; -1: any
	}{
		{"GET", dir + weights, "", 200, "Content-Length", "2097152", 2 << 20},
		{"HEAD", dir + weights, "", 200, "Content-Length", "2097152", 0},
		{"GET", dir + weights, "Range: bytes=0-9", 206, "Content-Range", "bytes 0-9/2097152", 10},
		{"GET", dir + weights, "x-ms-range: bytes=1048570-1048589", 206, "Content-Range", "bytes 1048570-1048589/2097152", 20},
		{"GET", dir + weights, "Range: bytes=2097150-", 206, "Content-Range", "bytes 2097150-2097151/2097152", 2},
		{"GET", dir + weights, "Range: bytes=2097150-9999999", 206, "Content-Range", "bytes 2097150-2097151/2097152", 2},
		{"GET", dir + weights, "Range: bytes=2097152-", 416, "Content-Range", "bytes */2097152", -1},
		{"GET", dir + weights, "Range: bytes=9-3", 416, "", "", -1},
		{"GET", dir + weights, "Range: bytes=-5", 416, "", "", -1},
		{"GET", dir + weights, "Range: lines=1-2", 416, "", "", -1},
		{"GET", dir + weights, `If-Match: "other"`, 412, "x-ms-error-code", "ConditionNotMet", -1},
		{"GET", dir + config, "", 200, "Content-Type", "application/octet-stream", len(configJSON)},
		{"GET", dir + "other.bin", "", 404, "x-ms-error-code", "BlobNotFound", -1},
		{"GET", "/benchaccount/weights/17/" + weights, "", 404, "x-ms-error-code", "BlobNotFound", -1},
		{"GET", "/benchaccount/weights/x/" + weights, "", 404, "", "", -1},
		{"GET", "/other/weights/2097152/" + weights, "", 404, "x-ms-error-code", "ContainerNotFound", -1},
		{"GET", "/benchaccount/weights/files/config.json", "", 200, "Content-Length", "2", 2},
		{"GET", "/benchaccount/weights/files/../../etc/passwd", "", 404, "", "", -1},
		{"GET", "/benchaccount/weights/files/none", "", 404, "", "", -1},
	} {
		req, err := http.NewRequest(c.method, url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if name, value, ok := strings.Cut(c.header, ": "); ok {
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.status || c.field != "" && res.Header.Get(c.field) != c.want || c.body >= 0 && len(b) != c.body {
			t.Errorf("%s %s %s: %d, %s %q, %d bytes", c.method, c.path, c.header, res.StatusCode, c.field, res.Header.Get(c.field), len(b))
		}
	}
	for prefix, want := range map[string]string{
		"2097152/": "<Content-Length>2097152<", "files/": "<Name>files/config.json<", "2097152-md5/": "Content-MD5", "none/": "<Blobs></Blobs>",
	} {
		res, err := http.Get(url + "/benchaccount/weights?restype=container&comp=list&prefix=" + prefix)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if !strings.Contains(string(b), want) {
			t.Errorf("a listing of %s: %s", prefix, b)
		}
	}
	sum, _ := n.md5(2 << 20)
	res, err := http.Head(url + "/benchaccount/weights/2097152-md5/" + weights)
	if err != nil || res.Header.Get("Content-MD5") != base64.StdEncoding.EncodeToString(sum) {
		t.Errorf("%v %v", res.Header, err)
	}
	res.Body.Close()
	got, err := stats(t.Context(), url)
	if err != nil || got.Bytes != s.bytes.Load() || got.Lists != 4 || got.Heads != 2 || got.Bytes < 2<<20 {
		t.Errorf("%+v %v", got, err)
	}
}

// TestContenders: every contender in this program downloads the right bytes, also from a
// shaped server and through a storm.
func TestContenders(t *testing.T) {
	n := testNoise(t)
	const size = 4<<20 + 13
	for name, shape := range map[string]Shape{
		"unshaped": {},
		"shaped":   {Rate: 64 << 20, First: time.Millisecond, Stragglers: 0.1, Slower: 2, Total: 128 << 20, Buffer: 64 << 10},
		"stormy":   {Rate: 64 << 20, First: time.Millisecond, Total: 128 << 20, Storm: 20 * time.Millisecond, Every: 100 * time.Millisecond, Buffer: 64 << 10},
	} {
		url, _ := testServer(t, n, "", shape)
		for _, with := range []string{Thaw, ThawAlone, Azblob, AzblobTuned, LinkAndWrite, LinkAndDisk, Link} {
			if shape.Storm > 0 && with != Thaw {
				continue // without retries, or with one too few
			}
			t.Run(name+" "+with, func(t *testing.T) {
				var out strings.Builder
				into := t.TempDir()
				err := Download{With: with, Server: url, Size: size, Into: into, MD5: with == Thaw}.Run(t.Context(), &out)
				if err != nil && with == LinkAndDisk {
					testkit.Missing(t, "no O_DIRECT here:", err)
				}
				if err != nil {
					t.Fatal(err)
				}
				http.DefaultClient.CloseIdleConnections()
				if with == Link || with == ThawAlone {
					return
				}
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				if err := n.check(lines[len(lines)-1], size, 1); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := (Download{With: "wget"}).Run(t.Context(), io.Discard); err == nil {
		t.Error("wget is no contender")
	}
}

// TestBucket: bytes flow at the rate, and a late timer does not lower it.
func TestBucket(t *testing.T) {
	now := time.Unix(1000, 0)
	b := bucket{rate: 1000}
	if d := b.take(now, 100, 1); d > 0 {
		t.Errorf("the first waits %v", d)
	}
	var wait time.Duration
	for range 10 {
		wait = b.take(now, 100, 1)
	}
	if want := 980 * time.Millisecond; wait != want { // 1,000 bytes before it, minus the allowance
		t.Errorf("after a second's bytes the next waits %v, want %v", wait, want)
	}
	if d := b.take(now.Add(10*time.Second), 100, 1); d > 0 {
		t.Errorf("after a pause it waits %v", d)
	}
	if d := b.take(now.Add(10*time.Second), 100, 1); d > 100*time.Millisecond {
		t.Errorf("a pause was saved up, or held against it: %v", d)
	}
	slow := bucket{rate: 1000}
	slow.take(now, 100, 10)
	if d := slow.take(now, 1, 1); d != 980*time.Millisecond {
		t.Errorf("a straggler's next waits %v", d)
	}
	var free bucket
	if d := free.take(now, 1<<40, 1); d != 0 {
		t.Errorf("no rate, and %v", d)
	}
}

func TestJudge(t *testing.T) {
	trial := func(seconds, cpu float64) Trial {
		return Trial{Seconds: seconds, Durable: seconds, CPU: cpu, RSS: 50 << 20}
	}
	c := &Comparison{Name: Unshaped, Bytes: 4e9,
		Ceilings: []Ceilings{{Link: 4e9, Direct: 2e9, Cached: 1e9, SHA256: 1 << 31, BLAKE3: 1 << 31, MD5: 1, XXH3: 1}},
		Rows:     []Row{{Contender: Thaw, Trials: []Trial{trial(2.1, 0.75)}}, {Contender: ThawAlone, Trials: []Trial{trial(2, 0.5)}}, {Contender: AzblobTuned, Trials: []Trial{trial(4.2, 1.25)}}}}
	c.Rows[0].Trials[0].ReadBack = 2e9
	c.reduce()
	shaped := &Comparison{Name: Shaped, Bytes: 4e9, Shape: Account,
		Ceilings: []Ceilings{{Link: 4e9, Direct: 2e9, SHA256: 1 << 31, BLAKE3: 1 << 31, MD5: 1, XXH3: 1}},
		Rows:     []Row{{Contender: Thaw, Trials: []Trial{trial(4, 1)}}, {Contender: Azblob, Trials: []Trial{trial(15, 1)}}}}
	shaped.reduce()
	r := Result{
		Comparisons: []*Comparison{c, shaped}, Memory: []Memory{{Bytes: 1 << 30, RSS: 300 << 20, Seconds: 1}}, Resumed: &Resumed{Bytes: 100, Again: 0.01},
		Peers:    &Peers{Nodes: 8, Alone: []float64{5}, Last: []float64{7}, Egress: []float64{1.2}},
		Streamed: &Streamed{Download: []float64{4}, Boot: []float64{3}, First: []float64{4.4}},
	}
	r.Goals = checkGoals(r)
	want := []struct {
		got string
		met bool
	}{{"1.05x", true}, {"1.9 GiB", false}, {"0.95", true}, {"2.00x", true}, {"0.40x (0.60x with them)", true}, {"0.67", false}, {"3.75x", false}, {"300 MiB", false}, {"1.00 %", true}, {"1.10x", true}, {"1.20 models", false}, {"1.40x", true}}
	if len(r.Goals) != len(want) {
		t.Fatalf("%+v", r.Goals)
	}
	for i, g := range r.Goals {
		if g.Got != want[i].got || g.Met != want[i].met {
			t.Errorf("%s: %s, met %t; want %+v", g.Description, g.Got, g.Met, want[i])
		}
	}
	r.Provenance = report.NewProvenance(Kind, []string{"loader"}, time.Unix(0, 0))
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "loader.md"))
	if err != nil || !strings.Contains(string(page), "| NO |") || !strings.Contains(string(page), "azblob tuned") {
		t.Errorf("%v\n%s", err, page)
	}
}

func TestParseFolder(t *testing.T) {
	for s, ok := range map[string]bool{"1048576": true, "1048576-md5": true, "1048575": false, "-md5": false, "": false, "9999999999999999999": false, "1099511627777": false, "0x100000": false} {
		if _, _, err := parseFolder(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
	if size, md5, err := parseFolder(folder(1<<30, true)); size != 1<<30 || !md5 || err != nil {
		t.Errorf("%d %t %v", size, md5, err)
	}
	var s Shape
	if Account.flags() == nil || s.flags() != nil || functions.Bytes(57<<20) != Account.Rate {
		t.Error("the flags of a shape")
	}
}
