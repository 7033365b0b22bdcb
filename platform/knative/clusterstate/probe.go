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

// prober probes pods without the shim: their queue-proxy answers a probe once the
// container does. Kubernetes would report it one or two seconds later.
type Prober struct {
	client  *http.Client
	onReady func(types.UID)
	needed  func(types.UID) bool
	queue   chan Probe
	every   time.Duration
	url     func(ip string) string
}

func NewProber(ready func(types.UID), alive func(types.UID) bool) *Prober {
	return &Prober{
		onReady: ready, needed: alive, queue: make(chan Probe, 4096), every: 20 * time.Millisecond,
		client: &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
		url:    func(ip string) string { return "http://" + net.JoinHostPort(ip, strconv.Itoa(queueProxy)) + "/" },
	}
}

// Add starts probing a pod. It does not block.
func (p *Prober) Add(x Probe) {
	select {
	case p.queue <- x:
	default: // full: Kubernetes reports readiness
	}
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case x := <-p.queue:
			all.Go(func() { p.probeUntilReady(ctx, x) })
		}
	}
}

// probeUntilReady probes one pod with growing pauses until it answers or is no longer
// needed.
func (p *Prober) probeUntilReady(ctx context.Context, x Probe) {
	wait := p.every
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

func (p *Prober) probeOnce(ctx context.Context, ip string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url(ip), nil)
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
