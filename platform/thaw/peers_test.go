package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/testkit/azuretest"
)

var lends = regexp.MustCompile(`msg=agent .*lends=(https://\S+)`)

// TestNodesDownloadOnce: two agents with empty stores get each other's address from the
// server and together download a model once. A third agent later requests only the
// listing from the source, and so does a pull without a server that names a peer.
func TestNodesDownloadOnce(t *testing.T) {
	blobs := startBlobServer(t)
	p := start(t, nil)
	for _, name := range []string{"one", "two"} {
		defer p.agent(name)()
	}
	known := func(n int) {
		p.eventually("the agents are known", func() bool { return len(p.items("/api/v1/nodes")) == n })
	}
	known(3)
	blobs.Fault(nil) // forget earlier requests
	var all sync.WaitGroup
	bring := func(node string) {
		if out, errs, code := verb(t, "prefetch", azuretest.Location("tiny"), "--node", node, "--server", p.url, "--key",
			strings.TrimPrefix(p.admin(), "Bearer ")); code != 0 {
			t.Errorf("%s: %d\n%s%s", node, code, out, errs)
		}
	}
	for _, node := range []string{"one", "two"} {
		all.Go(func() { bring(node) })
	}
	all.Wait()
	defer p.agent("three")()
	known(4)
	p.answered("three")
	before := len(blobs.Gets())
	bring("three")
	if n := len(blobs.Gets()) - before; n != 0 {
		t.Errorf("the source was asked for %d ranges where two nodes had them", n)
	}
	at := lends.FindStringSubmatch(p.log.String())
	if at == nil {
		t.Fatal("no node says where it lends")
	}
	before = len(blobs.Gets())
	data := t.TempDir()
	pull := []string{"pull", azuretest.Location("tiny"), "--data", data, "--peer", at[1], "--certs", p.data + "-one/identity"}
	if out, errs, code := verb(t, pull...); code != 0 {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	if n := len(blobs.Gets()) - before; n != 0 {
		t.Errorf("a pull asked the source for %d ranges that a node had", n)
	}
	pull[len(pull)-1] = filepath.Join(data, "none")
	if out, errs, code := verb(t, pull...); code != 2 || !strings.Contains(errs, "--certs") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}
