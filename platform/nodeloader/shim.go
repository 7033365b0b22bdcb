package nodeloader

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// shim is the connection of one pod's shim.
type shim struct {
	d    *Daemon
	uid  string
	conn *jsonsocket.Conn
	out  *outbox

	folders bool // it accepts folders over the socket

	status *functions.ReplicaStatus // the last one; guarded by the daemon's mu

	mu        sync.Mutex // guards the fields below
	stages    map[int]*podStaging
	leases    map[string]*store.Lease // by digest
	bytes     map[string]int64        // bytes of each requested checkpoint, by source and file patterns
	verifying bool                    // a checkpoint of the pod is being verified
}

// serve runs one connection until it ends.
func (d *Daemon) serve(ctx context.Context, uc *net.UnixConn) {
	conn := jsonsocket.NewConn(uc, controlstream.MaxLine)
	conn.WriteWait = writeWait
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	s := &shim{d: d, conn: conn, out: newOutbox(func() { conn.Close() }), stages: map[int]*podStaging{}, leases: map[string]*store.Lease{},
		bytes: map[string]int64{}}
	uid, err := d.o.IdentifyPod(uc)
	if err != nil {
		d.refuse(conn, "who dials is no pod: "+err.Error())
		return
	}
	s.uid = uid
	if !d.countConnection(uid, 1) {
		d.refuse(conn, "the pod has enough connections")
		return
	}
	defer d.countConnection(uid, -1)
	log := d.o.Log.With("pod", uid)
	conn.SetReadDeadline(time.Now().Add(helloWait))
	var first controlstream.FromPod
	if err := conn.Receive(&first); err != nil || first.Hello == nil {
		if ctx.Err() == nil && !errors.Is(err, io.EOF) {
			d.refuse(conn, "the first line is no hello")
		}
		return
	}
	conn.SetReadDeadline(time.Time{})
	if ctx.Err() != nil {
		return
	}
	s.folders = first.Hello.Folders
	old := d.register(s)
	if old != nil {
		log.Warn("the pod has connected again; its older connection is closed")
		old.conn.Close()
	}
	log.Info("a pod has connected", "address", first.Hello.PodIP, "port", first.Hello.Port, "version", first.Hello.Version)
	var writing, staging sync.WaitGroup
	writing.Go(func() {
		if err := s.out.run(conn); err != nil && ctx.Err() == nil {
			log.Warn("the pod does not read its lines", "error", err)
		}
		conn.Close() // ends readLines
	})
	err = s.readLines(ctx, &staging)
	ending := ctx.Err() != nil
	cancel()
	staging.Wait()
	s.out.close()
	writing.Wait()
	s.out.discardAll()
	s.release()
	d.unregister(s, ending)
	if ending {
		return
	}
	if errors.Is(err, jsonsocket.ErrLine) {
		d.counts.refused.Add(1)
		log.Warn("a pod has sent an invalid line", "error", err)
	} else {
		log.Info("the pod has hung up")
	}
}

// refuse sends the reason, and nothing else, before the connection is closed.
func (d *Daemon) refuse(conn *jsonsocket.Conn, reason string) {
	d.counts.refused.Add(1)
	d.complain("refused", "why", reason)
	conn.WriteWait = time.Second
	_ = conn.Send(controlstream.ToPod{Failed: &controlstream.Failed{Kind: controlstream.KindRefused, Message: reason}})
}

// register makes s its pod's connection, and returns the previous one.
func (d *Daemon) register(s *shim) (old *shim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old = d.shims[s.uid]
	d.shims[s.uid] = s
	s.out.put(controlstream.ToPod{Welcome: &controlstream.Welcome{Node: d.o.Node, UID: s.uid, Store: d.o.Dir}})
	if stop, ok := d.pendingStops[s.uid]; ok {
		delete(d.pendingStops, s.uid)
		if time.Since(stop.at) <= stopWait {
			s.out.put(controlstream.ToPod{Stop: &stop.Drain})
		}
	}
	return old
}

// unregister removes a connection, and reports the pod as gone unless this loader is
// ending.
func (d *Daemon) unregister(s *shim, ending bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shims[s.uid] != s {
		return
	}
	delete(d.shims, s.uid)
	if !ending {
		d.o.Send(controlstream.Report{Pods: []controlstream.Pod{{UID: s.uid, Gone: true}}})
	}
}

// readLines handles the shim's lines until the connection ends.
func (s *shim) readLines(ctx context.Context, staging *sync.WaitGroup) error {
	p := lineLimiter{perSecond: s.d.o.Lines}
	for {
		var m controlstream.FromPod
		if err := s.conn.Receive(&m); err != nil {
			return err
		}
		if !p.wait(ctx) {
			return ctx.Err()
		}
		if m.Status != nil {
			s.onStatus(*m.Status)
		}
		if m.Stage != nil {
			s.startStaging(ctx, *m.Stage, staging)
		}
		if m.Verify != nil {
			s.startVerification(ctx, *m.Verify, staging)
		}
	}
}

func (s *shim) onStatus(status functions.ReplicaStatus) {
	st := sanitizeStatus(status)
	// A repeated status is sent too: the controller may not have known the pod the
	// first time.
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.status = &st
	if s.d.shims[s.uid] == s {
		// Under the lock: no status of an older connection is sent after this one.
		s.d.o.Send(controlstream.Report{Pods: []controlstream.Pod{{UID: s.uid, Status: st}}})
	}
}

func (s *shim) release() {
	s.mu.Lock()
	held := s.leases
	s.leases = nil
	s.mu.Unlock()
	for digest, lease := range held {
		lease.Release()
		s.d.leases.remove(digest)
	}
}

// outbox queues the lines for a shim. A line about a staging replaces progress of it; all
// other lines are kept, up to maxOutMessages, after which the connection is closed.
type outbox struct {
	wake      newest.Signal
	closeConn func()

	mu     sync.Mutex // guards the fields below
	lines  []outMessage
	full   bool
	closed bool
}

type outMessage struct {
	controlstream.ToPod
	folder []*os.File // none or one; closed once the line is sent or dropped
}

// replaces reports whether an older line is progress of the staging that m is about.
func (m outMessage) replaces(old outMessage) bool {
	p := old.Staging
	return p != nil && (m.Staging != nil && m.Staging.ID == p.ID || m.Staged != nil && m.Staged.ID == p.ID ||
		m.Failed != nil && m.Failed.ID == p.ID)
}

func (m outMessage) discard() {
	for _, f := range m.folder {
		f.Close()
	}
}

const maxOutMessages = 256

var errOutboxFull = errors.New("too many lines are waiting to be read")

func newOutbox(closeConn func()) *outbox {
	return &outbox{wake: newest.NewSignal(), closeConn: closeConn}
}

// put queues a line, with a folder of which it takes ownership.
func (o *outbox) put(m controlstream.ToPod, folder ...*os.File) {
	message := outMessage{m, folder}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		message.discard()
		return
	}
	o.lines = append(slices.DeleteFunc(o.lines, message.replaces), message)
	if len(o.lines) > maxOutMessages && !o.full {
		o.full = true
		o.closeConn() // close at once: the writer is blocked on the shim
	}
	o.wake.Set()
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.wake)
	}
}

// discardAll closes the folders of all unsent lines.
func (o *outbox) discardAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.lines {
		m.discard()
	}
	o.lines = nil
}

func (o *outbox) take() (lines []outMessage, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.full {
		return nil, errOutboxFull
	}
	lines, o.lines = o.lines, nil
	return lines, nil
}

// run writes until the outbox is closed and empty.
func (o *outbox) run(conn *jsonsocket.Conn) error {
	for open := true; open; {
		_, open = <-o.wake
		lines, err := o.take()
		if err != nil {
			return err
		}
		for i, m := range lines {
			err := conn.Send(m.ToPod, m.folder...)
			m.discard()
			if err != nil {
				for _, m := range lines[i+1:] {
					m.discard()
				}
				return err
			}
		}
	}
	return nil
}
