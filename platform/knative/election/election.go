package election

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Times of the lease. A holder that fails to renew it for renewFor gives it up; after
// leaseFor another may take it. A controller that ends releases it.
const (
	leaseFor  = 15 * time.Second
	renewFor  = 10 * time.Second
	retryLead = time.Second
)

const Lease = "thaw-controller"

// Election is one controller's part in the leader election.
type Election struct {
	kube      kubernetes.Interface
	namespace string
	identity  string
	log       *slog.Logger
	renewed   atomic.Pointer[time.Time] // when the lease was last renewed
	leader    atomic.Pointer[string]    // its address; nil or "": unknown
	leads     atomic.Bool
}

// New makes the part of the controller with this name, whose peers reach it at advertise.
func New(kube kubernetes.Interface, namespace, name, advertise string, log *slog.Logger) *Election {
	return &Election{
		kube: kube, namespace: namespace, log: log,
		identity: fmt.Sprintf("%s_%s@%s", name, rand.Text()[:8], advertise),
	}
}

// Leader is the leader's address; "" if unknown.
func (e *Election) Leader() string {
	if p := e.leader.Load(); p != nil {
		return *p
	}
	return ""
}

// Identity names this controller in the Lease, unlike any other process.
func (e *Election) Identity() string { return e.identity }

// HoldsLease reports whether the lease is surely held: it was renewed less than renewFor
// ago by the monotonic clock.
func (e *Election) HoldsLease() bool {
	at := e.renewed.Load()
	return e.leads.Load() && at != nil && time.Since(*at) < renewFor
}

// newLock makes an access to the Lease for one goroutine: Get, Create and Update of a LeaseLock
// keep what they read in it.
func (e *Election) newLock() *resourcelock.LeaseLock {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: Lease, Namespace: e.namespace},
		Client:     e.kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
	}
}

// renewalLock records when the lease was last renewed.
type renewalLock struct {
	resourcelock.Interface
	e *Election
}

func (r renewalLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now() // taken before the write: the API server counts from its own, later time
	err := r.Interface.Update(ctx, record)
	if err == nil && record.HolderIdentity == r.e.identity {
		r.e.renewed.Store(&at)
	}
	return err
}

func (r renewalLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now()
	err := r.Interface.Create(ctx, record)
	if err == nil {
		r.e.renewed.Store(&at)
	}
	return err
}

// ErrLost: another controller holds the lease, or it could not be renewed.
var ErrLost = errors.New("the lease is lost")

// Run waits for the lease and calls lead with the epoch of the term, repeatedly until ctx
// ends. lead's ctx ends with the lease, which is released when lead returns.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, epoch int64) error) error {
	for {
		err := e.holdLease(ctx, lead)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, ErrLost) {
			return err
		}
		e.log.Warn("no longer leading", "error", err)
	}
}

func (e *Election) holdLease(ctx context.Context, lead func(ctx context.Context, epoch int64) error) error {
	term, end := context.WithCancelCause(ctx)
	defer end(nil)
	done := make(chan error, 1)
	led := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: renewalLock{e.newLock(), e}, LeaseDuration: leaseFor, RenewDeadline: renewFor, RetryPeriod: retryLead, ReleaseOnCancel: true,
		Name: Lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				close(led)
				e.leads.Store(true)
				defer e.leads.Store(false)
				record, _, err := e.newLock().Get(ctx)
				if err != nil {
					done <- fmt.Errorf("the lease: %w", err)
					end(err)
					return
				}
				epoch := int64(record.LeaderTransitions) + 1
				e.log.Info("leading", "epoch", epoch, "as", e.identity)
				err = lead(ctx, epoch)
				e.leads.Store(false)
				done <- err
				end(err)
			},
			OnStoppedLeading: func() { e.leads.Store(false) },
			OnNewLeader: func(identity string) {
				_, address, _ := strings.Cut(identity, "@")
				e.leader.Store(&address)
			},
		},
	})
	if err != nil {
		return err
	}
	elector.Run(term) // returns when the lease is lost or the term ends, after lead's ctx has ended
	select {
	case <-led:
		if err := <-done; err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			return err
		}
	default:
	}
	return ErrLost
}
