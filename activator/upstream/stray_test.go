package upstream

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"
)

var (
	behaviours = flag.Int("behaviours", 4000, "how many random behaviours of an engine TestStrayBytes plays")
	behaveSeed = flag.Uint64("behaviour-seed", 0, "the seed of TestStrayBytes; 0 is a new one")
)

// strayWorld is an engine that writes bytes no request asked for, and what is known of its
// answers. Its connections are Unix sockets: what was written is there when Write returns.
type strayWorld struct {
	ln    net.Listener
	start time.Time
	wg    sync.WaitGroup
	unit  time.Duration // a thousandth of its slowest answers
	calm  bool          // it writes only what was asked for

	mu     sync.Mutex
	rng    *rand.Rand
	tags   int
	ends   map[string]time.Duration // by what was written: when all of it was there
	begins map[string]time.Duration // of requests
	delays map[string]time.Duration // of answers whose connections are kept
	marked time.Duration            // when the first report of unsolicited bytes came
	wrong  []string
}

func (w *strayWorld) now() time.Duration { return time.Since(w.start) }

func (w *strayWorld) chance(n int) bool { return w.draw(n) == 0 }

func (w *strayWorld) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// strayConn is the engine's end of a connection.
type strayConn struct {
	net.Conn
	w  *strayWorld
	mu sync.Mutex
}

// write writes pieces with pauses; tag names them.
func (c *strayConn) write(tag string, pieces ...string) bool {
	for i, p := range pieces {
		if i > 0 && c.w.chance(2) {
			<-time.After(time.Duration(c.w.draw(300)) * time.Microsecond)
		}
		c.mu.Lock()
		_, err := io.WriteString(c.Conn, p)
		c.mu.Unlock()
		if err != nil {
			return false
		}
	}
	c.w.mu.Lock()
	c.w.ends[tag] = c.w.now()
	c.w.mu.Unlock()
	return true
}

// stray writes what no request asked for.
func (c *strayConn) stray() {
	w := c.w
	w.mu.Lock()
	w.tags++
	tag := fmt.Sprintf("<stray %d>", w.tags)
	w.mu.Unlock()
	var raw string
	switch w.draw(6) {
	case 0:
		raw = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(tag), tag)
	case 1:
		raw = tag
	case 2:
		raw = "HTTP/1.1 200 OK\r\nx: " + tag
	default:
		raw = whole(tag)
	}
	c.write(tag, raw)
}

func (w *strayWorld) serve() {
	for {
		nc, err := w.ln.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() {
			c := &strayConn{Conn: nc, w: w}
			var later sync.WaitGroup
			defer nc.Close()
			defer later.Wait()
			br := bufio.NewReader(nc)
			for n := 0; ; n++ {
				r, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil || !w.answer(c, &later, string(body), n) {
					return
				}
			}
		})
	}
}

// answer answers request number n of a connection, and strays.
func (w *strayWorld) answer(c *strayConn, later *sync.WaitGroup, tag string, n int) bool {
	came := w.now()
	w.mu.Lock()
	if n > 0 && w.marked > 0 && w.begins[tag] > w.marked {
		w.wrong = append(w.wrong, tag+" is a second request on a connection, although the engine is known to write stray bytes")
	}
	w.mu.Unlock()
	if !w.calm && w.chance(12) { // before the answer
		c.stray()
	}
	if w.chance(3) {
		<-time.After(time.Duration(w.draw(1000)) * w.unit)
	}
	closes := w.chance(10)
	pieces := []string{"HTTP/1.1 200 OK\r\ncontent-length: ", fmt.Sprintf("%d\r\n\r\n", len(tag)), tag}
	switch {
	case w.chance(2):
		pieces = []string{"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n", len(tag)), tag + "\r\n", "0\r\n\r\n"}
	case closes && w.chance(2):
		pieces = []string{"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", tag}
	}
	if !w.calm && w.chance(20) { // inside of it, or right behind it
		later.Go(c.stray)
	}
	began := w.now()
	if !c.write(tag, pieces...) {
		return false
	}
	if !closes {
		w.mu.Lock()
		w.delays[tag] = began - came
		w.mu.Unlock()
	}
	if !w.calm && w.chance(12) {
		wait := time.Duration(w.draw(2000)) * time.Microsecond
		later.Go(func() {
			<-time.After(wait)
			c.stray()
		})
	}
	return !closes
}

var tagged = regexp.MustCompile(`<[a-z]+ \d+>`)

// ask sends one request and checks what its client gets.
func (w *strayWorld) ask(c *Client, tag string) {
	begin := w.now()
	w.mu.Lock()
	w.begins[tag] = begin
	w.mu.Unlock()
	r, err := c.Do(context.Background(), postRequest("engine", tag))
	var b []byte
	if err == nil {
		b, err = io.ReadAll(r)
		r.Close()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r != nil && r.FirstUnsolicited {
		w.marked = w.now()
	}
	if string(b) == tag && err == nil {
		return
	}
	delete(w.delays, tag) // its connection was not kept, or is behind
	others := tagged.FindAllString(string(b), -1)
	if w.tags == 0 {
		w.wrong = append(w.wrong, fmt.Sprintf("%s got %q (%v) before any stray byte", tag, b, err))
	}
	for _, other := range others {
		end, there := w.ends[other]
		if other == tag || !there {
			continue
		}
		if end < begin {
			w.wrong = append(w.wrong, fmt.Sprintf("%s got %s, which was there %v before it was sent", tag, other, begin-end))
		}
		asked, displaced := w.begins[other]
		if !displaced {
			continue
		}
		// The answer of an earlier request, whose client got a stray one: only where it took
		// longer than the slowest before, whose weight sinks to a quarter over an engine's
		// requests.
		answers := 0
		var slowest time.Duration
		for before, d := range w.delays {
			if w.ends[before] < begin && before != other {
				answers++
				slowest = max(slowest, d)
			}
		}
		if answers > 2*minAnswers && slowest >= 4*minRest && end-asked < slowest/4 {
			w.wrong = append(w.wrong,
				fmt.Sprintf("%s got the answer of %s, which took %v; the slowest had taken %v", tag, other, end-asked, slowest))
		}
	}
}

// TestStrayBytes: whatever an engine writes and when, bytes that were there before a request
// was sent never reach its client, and an answer that a stray one has displaced reaches
// another only where it is slower than all before.
func TestStrayBytes(t *testing.T) {
	seed := *behaveSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-behaviour-seed %d", seed)
	const clients, requests = 4, 20
	strays, marked := 0, 0
	for world := range max(1, *behaviours/(clients*requests)) {
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		w := &strayWorld{ln: ln, start: time.Now(), calm: world%8 == 0, unit: time.Microsecond, rng: rand.New(rand.NewPCG(seed, uint64(world))),
			ends: map[string]time.Duration{}, begins: map[string]time.Duration{}, delays: map[string]time.Duration{}}
		if world%8 == 1 {
			w.unit = 20 * time.Microsecond
		}
		w.wg.Go(w.serve)
		c := New(Options{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}})
		var asking sync.WaitGroup
		for i := range clients {
			asking.Go(func() {
				for n := range requests {
					w.ask(c, fmt.Sprintf("<request %d>", i*requests+n))
				}
			})
		}
		asking.Wait()
		c.Close()
		ln.Close()
		w.wg.Wait()
		strays += w.tags
		if w.marked > 0 {
			marked++
		}
		for _, problem := range w.wrong {
			t.Errorf("seed %d, engine %d: %s", seed, world, problem)
		}
	}
	t.Logf("%d stray writes, found at %d engines", strays, marked)
	if strays == 0 || marked == 0 {
		t.Error("the engines behaved too well to test anything")
	}
}
