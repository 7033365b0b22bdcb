package clusterstate

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/functions/backoff"
)

// probe is a pod without the shim that is to be probed.
type probe struct {
	uid types.UID
	ip  string
}

// prober probes pods without the shim: their queue-proxy answers a probe once the
// container does. Kubernetes would report it one or two seconds later.
type prober struct {
	client  *http.Client
	onReady func(types.UID)
	needed  func(types.UID) bool
	queue   chan probe
}

func newProber(ready func(types.UID), needed func(types.UID) bool) *prober {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return &prober{client: client, onReady: ready, needed: needed, queue: make(chan probe, 4096)}
}

// add starts probing a pod. It does not block.
func (p *prober) add(x probe) {
	select {
	case p.queue <- x:
	default: // full: Kubernetes reports readiness
	}
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-p.queue:
			all.Go(func() { p.probeUntilReady(ctx, x) })
		}
	}
}

// probeUntilReady probes one pod with growing pauses until it answers or is no longer
// needed.
func (p *prober) probeUntilReady(ctx context.Context, x probe) {
	wait := 20 * time.Millisecond
	for p.needed(x.uid) {
		if p.probeOnce(ctx, x.ip) {
			p.onReady(x.uid)
			return
		}
		if !backoff.Sleep(ctx, wait) {
			return
		}
		wait = min(wait*21/20, time.Second)
	}
}

func (p *prober) probeOnce(ctx context.Context, ip string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(ip, strconv.Itoa(queueProxy))+"/", nil)
	if err != nil {
		return false
	}
	// The headers of Knative's own activator (knative.dev/networking/pkg/http/header).
	req.Header.Set("K-Network-Probe", "queue")
	req.Header.Set("User-Agent", "Knative-Activator-Probe")
	res, err := p.client.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}
