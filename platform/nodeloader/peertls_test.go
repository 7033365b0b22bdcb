package nodeloader

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

const otherLocation = "mem://models/other"

// authority issues the certificates of a cluster.
func authority(t *testing.T) *mtls.Issued {
	t.Helper()
	made, err := mtls.Issue(time.Now(), controlstream.NameController, controlstream.NameActivator, controlstream.NameLoader)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// certificates is a folder with the certificate of a role.
type certificates struct {
	*mtls.Folder
	t   *testing.T
	dir string
}

func newCertificates(t *testing.T, by *mtls.Issued, role string, roots ...*mtls.Issued) *certificates {
	t.Helper()
	c := &certificates{t: t, dir: t.TempDir()}
	c.put(by, role, roots...)
	f, err := mtls.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	c.Folder = f
	return c
}

// put replaces the certificate; roots are trusted, by default the one that signed it.
func (c *certificates) put(by *mtls.Issued, role string, roots ...*mtls.Issued) {
	c.t.Helper()
	trusted := slices.Clone(by.Root)
	if len(roots) > 0 {
		trusted = nil
	}
	for _, r := range roots {
		trusted = append(trusted, r.Root...)
	}
	for name, b := range map[string][]byte{mtls.RootFile: trusted, mtls.CertFile: by.Leaves[role].Cert, mtls.KeyFile: by.Leaves[role].Key} {
		if err := os.WriteFile(filepath.Join(c.dir, name), b, 0o600); err != nil {
			c.t.Error(err)
		}
	}
}

// peerLab starts the loader of a node with peers.
func peerLab(t *testing.T, name string, size int, certs *certificates) (l *lab, url string) {
	t.Helper()
	l = newLab(t, func(o *Options, storeOptions *nodestore.Options, mem *sourcetest.Memory) {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		url = "https://" + lis.Addr().String()
		o.PeerURL = url
		storeOptions.Node, storeOptions.Peering = name, &nodestore.Peering{Listener: lis, URL: url, TLS: PeerTLS(certs.Identity)}
		aModel(mem, modelLocation, size, 5)
		aModel(mem, otherLocation, size, 7)
	})
	return l, url
}

// peersOf tells a node which others there are.
func (l *lab) peersOf(urls ...string) {
	peers := []functions.Peer{}
	for i, u := range urls {
		peers = append(peers, functions.Peer{ID: fmt.Sprintf("node-%d", i), URL: u})
	}
	l.OnUpdate(controlstream.Update{Peers: &peers})
}

// TestPeers: a second node downloads from the first if both have a loader's certificate, and
// from the source alone if one has another.
func TestPeers(t *testing.T) {
	const size = 20 << 20
	ours, other := authority(t), authority(t)
	first, at := peerLab(t, "node-0", size, newCertificates(t, ours, controlstream.NameLoader))
	p := first.pod("u1")
	p.want(1, modelLocation)
	digest := p.staged(1).Digest
	hb := first.until("where it lends", func(u controlstream.Report) bool { return u.Node != nil && u.Node.PeerURL != "" }).Node
	if hb.PeerURL != at {
		t.Fatalf("it lends at %s and says %s", at, hb.PeerURL)
	}
	for _, x := range []struct {
		name  string
		certs *certificates
		fromA bool
	}{
		{"a loader", newCertificates(t, ours, controlstream.NameLoader), true},
		{"an activator", newCertificates(t, ours, controlstream.NameActivator), false},
		{"a loader of another authority", newCertificates(t, other, controlstream.NameLoader, ours), false},
		{"a loader that trusts another authority", newCertificates(t, ours, controlstream.NameLoader, other), false},
	} {
		t.Run(x.name, func(t *testing.T) {
			l, own := peerLab(t, "node-1", size, x.certs)
			l.peersOf(at, own)
			p := l.pod("u2")
			p.want(1, modelLocation)
			if got := p.staged(1); got.Digest != digest {
				t.Errorf("%+v", got)
			}
			if n := l.store.Stats().Bytes["peer"]; x.fromA && n < size || !x.fromA && n != 0 {
				t.Errorf("from the other node came %v", n)
			}
			if said := strings.Contains(l.log.String(), "a node is not asked for blocks"); said == x.fromA {
				t.Errorf("the log says why: %v\n%s", said, l.log)
			}
		})
	}
}

// TestPeersRefuse: a process without a loader's certificate gets no answer of a loader, and a
// loader sends no name to a server without one.
func TestPeersRefuse(t *testing.T) {
	ours, other := authority(t), authority(t)
	_, at := peerLab(t, "node-0", 1000, newCertificates(t, ours, controlstream.NameLoader))
	identity := func(by *mtls.Issued, role string) *mtls.Identity {
		id, err := newCertificates(t, by, role, ours).Identity()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	none := mtls.Client(identity(ours, controlstream.NameLoader), controlstream.NameLoader)
	none.Certificates = nil
	for _, x := range []struct {
		name   string
		config *tls.Config
		status int // 0: no answer
	}{
		{"a loader", mtls.Client(identity(ours, controlstream.NameLoader), controlstream.NameLoader), 200},
		{"no certificate", none, 0},
		{"another authority", mtls.Client(identity(other, controlstream.NameLoader), controlstream.NameLoader), 0},
		{"an activator", mtls.Client(identity(ours, controlstream.NameActivator), controlstream.NameLoader), 0},
		{"the controller", mtls.Client(identity(ours, controlstream.NameController), controlstream.NameLoader), 0},
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: x.config, DisableKeepAlives: true}, Timeout: testTimeout}
		for _, path := range []string{"/peers/meet?plan=x", "/peers/blocks?plan=x&file=config.json&offset=0&length=2&wait=1", "/peers/folder?folder=/", "/"} {
			r, err := client.Post(at+path, "application/json", strings.NewReader(`{"id":"node-9","state":"arriving"}`))
			if err == nil {
				b, _ := io.ReadAll(r.Body)
				r.Body.Close()
				if x.status == 0 || strings.Contains(path, "meet") && (r.StatusCode != x.status || !strings.Contains(string(b), "node-0")) {
					t.Errorf("%s, %s: %d %s", x.name, path, r.StatusCode, b)
				}
			} else if x.status != 0 {
				t.Errorf("%s, %s: %v", x.name, path, err)
			}
		}
	}
	r, err := http.Get(strings.Replace(at, "https", "http", 1) + "/peers/meet?plan=x")
	if err == nil {
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != 400 || strings.Contains(string(b), "node-0") {
			t.Errorf("over plain HTTP: %d %s", r.StatusCode, b)
		}
	}
	http.DefaultClient.CloseIdleConnections()

	var heard atomic.Int64
	for _, id := range []*mtls.Identity{identity(ours, controlstream.NameActivator), identity(other, controlstream.NameLoader)} {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard.Add(1) }))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{id.Cert}}
		srv.StartTLS()
		defer srv.Close()
		l, _ := peerLab(t, "node-1", 1000, newCertificates(t, ours, controlstream.NameLoader))
		l.peersOf(srv.URL)
		p := l.pod("u1")
		p.want(1, modelLocation)
		p.staged(1)
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("%d requests to a server that is no loader", n)
	}
}

// TestPeersRotate: certificates of another authority come to both nodes while they exchange
// blocks, and to one before the other, as kubelets bring them.
func TestPeersRotate(t *testing.T) {
	const size = 32 << 20
	old, next := authority(t), authority(t)
	// Both are trusted from the start: the loop below is faster than a handshake, where on a
	// cluster minutes pass between two steps.
	certsA, certsB := newCertificates(t, old, controlstream.NameLoader, old, next),
		newCertificates(t, old, controlstream.NameLoader, old, next)
	a, at := peerLab(t, "node-0", size, certsA)
	p := a.pod("u1")
	for i, location := range []string{modelLocation, otherLocation} {
		p.want(i+1, location)
		p.staged(i + 1)
	}
	b, own := peerLab(t, "node-1", size, certsB)
	b.peersOf(at, own)
	p = b.pod("u2")
	ctx, stop := context.WithCancel(t.Context())
	rotated := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			certsA.put(next, controlstream.NameLoader, next, old)
			certsB.put(next, controlstream.NameLoader, next, old)
			old, next = next, old
		}
		rotated <- n
	}()
	p.want(1, modelLocation)
	p.staged(1)
	stop()
	if n := <-rotated; n == 0 {
		t.Error("nothing was rotated")
	}
	if n := b.store.Stats().Bytes["peer"]; n < size {
		t.Errorf("from the other node came %v", n)
	}
	fresh := authority(t)
	certsA.put(fresh, controlstream.NameLoader)
	certsB.put(fresh, controlstream.NameLoader)
	c, own := peerLab(t, "node-2", size, certsB)
	c.peersOf(at, own)
	p = c.pod("u3")
	p.want(1, otherLocation)
	p.staged(1)
	if n := c.store.Stats().Bytes["peer"]; n < size {
		t.Errorf("with the next authority: from the other node came %v", n)
	}
}
