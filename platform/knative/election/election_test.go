package election

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
)

// TestLeaseRunsOut: a controller that cannot renew its lease stops holding it renewFor after
// the last renewal, by its own clock: before the term is ended, and long before another
// controller may lead.
func TestLeaseRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		var away atomic.Bool
		var renewed atomic.Int64
		begin := time.Now()
		kube.PrependReactor("update", "leases", func(core.Action) (bool, runtime.Object, error) {
			if away.Load() {
				return true, nil, errors.New("the API server is away")
			}
			renewed.Store(int64(time.Since(begin)))
			return false, nil, nil
		})
		e := New(kube, "thaw-system", "one", "10.0.0.1:8090", slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		terms := make(chan error, 100)
		go func() {
			defer close(ended)
			e.Run(ctx, func(term context.Context, epoch int64) error {
				<-term.Done()
				terms <- context.Cause(term)
				return nil
			})
		}()
		at := func(d time.Duration) bool {
			time.Sleep(d - time.Since(begin))
			synctest.Wait()
			return e.HoldsLease()
		}
		if e.HoldsLease() {
			t.Error("it holds the lease before it has one")
		}
		if !at(20*time.Second) || e.Leader() != "10.0.0.1:8090" {
			t.Fatalf("it does not lead: %q", e.Leader())
		}
		away.Store(true)
		last := time.Duration(renewed.Load())
		if !at(last + renewFor - 100*time.Millisecond) {
			t.Error("it does not hold a lease that it renewed less than renewFor ago")
		}
		if at(last+renewFor+100*time.Millisecond) || len(terms) != 0 {
			t.Errorf("renewFor after the last renewal it holds the lease; %d terms have ended", len(terms))
		}
		if at(last+leaseFor) || len(terms) != 1 {
			t.Errorf("leaseFor after the last renewal it holds the lease; %d terms have ended", len(terms))
		}
		away.Store(false)
		if !at(last + 3*leaseFor) {
			t.Error("it does not lead again")
		}
		stop()
		<-ended
		if e.HoldsLease() {
			t.Error("it holds the lease after its end")
		}
	})
}
