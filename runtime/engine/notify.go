package engine

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// Notice is one sd_notify datagram of an engine.
type Notice struct {
	Ready   bool
	Percent int    // of loading; -1 if unknown
	Status  string // STATUS= as it came
}

// Notify is the NOTIFY_SOCKET of an engine.
type Notify struct {
	Addr string // the value of NOTIFY_SOCKET
	dir  string // to remove; "" for an abstract address
	conn *net.UnixConn
	ch   chan Notice
	done sync.WaitGroup
}

// ListenNotify opens a notify socket with a random name. The caller closes it.
func ListenNotify() (*Notify, error) {
	n := &Notify{ch: make(chan Notice, 64)}
	if runtime.GOOS == "linux" {
		n.Addr = "@thaw-" + rand.Text()
	} else {
		dir, err := os.MkdirTemp("", "thaw")
		if err != nil {
			return nil, err
		}
		n.dir, n.Addr = dir, filepath.Join(dir, "n")
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.Addr, Net: "unixgram"})
	if err != nil {
		os.RemoveAll(n.dir)
		return nil, err
	}
	n.conn = conn
	n.done.Go(n.read)
	return n, nil
}

// C receives the notices; Close closes it. When it is full, notices of progress are
// dropped, the one of readiness is not.
func (n *Notify) C() <-chan Notice { return n.ch }

func (n *Notify) Close() {
	n.conn.Close()
	n.done.Wait()
	os.RemoveAll(n.dir)
}

func (n *Notify) read() {
	defer close(n.ch)
	buf := make([]byte, 4096)
	ready := false
	for {
		k, err := n.conn.Read(buf)
		if err != nil {
			return
		}
		m := parseNotice(string(buf[:k]))
		if ready {
			continue
		}
		if ready = m.Ready; ready && len(n.ch) == cap(n.ch) {
			select { // the last slot is for this one
			case <-n.ch:
			default:
			}
		}
		select {
		case n.ch <- m:
		default:
		}
	}
}

func parseNotice(s string) Notice {
	m := Notice{Percent: -1}
	for line := range strings.SplitSeq(s, "\n") {
		k, v, _ := strings.Cut(line, "=")
		switch k {
		case "READY":
			m.Ready = v == "1"
		case "STATUS":
			m.Status = clipLine(v)
			for f := range strings.FieldsSeq(v) {
				if p, ok := strings.CutPrefix(f, "percent="); ok {
					if n, err := strconv.Atoi(p); err == nil && n >= 0 && n <= 100 {
						m.Percent = n
					}
				}
			}
		}
	}
	return m
}
