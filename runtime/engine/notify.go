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

// Notice is one datagram of an engine that speaks sd_notify.
type Notice struct {
	Ready   bool
	Percent int    // of loading; -1 when it does not say
	Status  string // STATUS= as it came
}

// Notify is the socket such an engine reports to.
type Notify struct {
	addr string
	dir  string // to remove; "" for an abstract address
	conn *net.UnixConn
	ch   chan Notice
	done sync.WaitGroup
}

// ListenNotify opens one, under a name nobody can guess. Close it.
func ListenNotify() (*Notify, error) {
	n := &Notify{ch: make(chan Notice, 64)}
	if runtime.GOOS == "linux" {
		n.addr = "@thaw-" + rand.Text()
	} else {
		dir, err := os.MkdirTemp("", "thaw")
		if err != nil {
			return nil, err
		}
		n.dir, n.addr = dir, filepath.Join(dir, "n")
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.addr, Net: "unixgram"})
	if err != nil {
		os.RemoveAll(n.dir)
		return nil, err
	}
	n.conn = conn
	n.done.Go(n.read)
	return n, nil
}

// Addr is what NOTIFY_SOCKET says.
func (n *Notify) Addr() string { return n.addr }

// C gives what comes; it is closed by Close. One who does not read loses
// notices of progress, never that of being ready.
func (n *Notify) C() <-chan Notice { return n.ch }

// Close ends it.
func (n *Notify) Close() {
	n.conn.Close()
	n.done.Wait()
	if n.dir != "" {
		os.RemoveAll(n.dir)
	}
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
		if m.Ready {
			ready = true
			for { // the last slot is for this one
				select {
				case n.ch <- m:
				default:
					select {
					case <-n.ch:
					default:
					}
					continue
				}
				break
			}
			continue
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
