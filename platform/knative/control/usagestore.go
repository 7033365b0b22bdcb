package control

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/quota"
)

// UsageConfigMap is the ConfigMap that keeps the usage of teams across terms, so that a
// new controller does not reset daily budgets.
const UsageConfigMap = "thaw-team-usage"

const usageKey = "teams.json"

// usageWriteTimeout bounds one write.
const usageWriteTimeout = 5 * time.Second

// usageStore keeps the usage of teams for one term. The orchestrator hands over a text
// between two turns without waiting; Run writes the newest.
type usageStore struct {
	maps    core.ConfigMapInterface
	epoch   int64
	log     *slog.Logger
	pending chan []byte

	stored     *corev1.ConfigMap // as last read or written; nil: none exists
	superseded bool              // a newer term writes
}

func newUsageStore(maps core.ConfigMapInterface, epoch int64, log *slog.Logger) *usageStore {
	return &usageStore{maps: maps, epoch: epoch, log: log, pending: make(chan []byte, 1)}
}

// load reads what the previous term stored. The ledger is usable even with an error.
func (s *usageStore) load(ctx context.Context) (*quota.Ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, usageWriteTimeout)
	defer cancel()
	var text []byte
	at, err := s.maps.Get(ctx, UsageConfigMap, metav1.GetOptions{})
	switch {
	case err == nil:
		s.stored, text = at, []byte(at.Data[usageKey])
	case status.IsNotFound(err):
		err = nil
	}
	ledger, bad := quota.NewLedger(text, s.enqueue)
	if err == nil {
		err = bad
	}
	if err != nil {
		return ledger, fmt.Errorf("usage of teams (ConfigMap %s): %w", UsageConfigMap, err)
	}
	return ledger, nil
}

// enqueue replaces a text that was not written yet.
func (s *usageStore) enqueue(text []byte) { newest.Offer(s.pending, text) }

// Run writes until ctx ends.
func (s *usageStore) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case text := <-s.pending:
			if ctx.Err() != nil {
				s.enqueue(text) // left for flush
				return nil
			}
			s.write(ctx, text)
		}
	}
}

// flush writes the last text, after Run has ended and nothing is enqueued any more.
func (s *usageStore) flush(ctx context.Context) {
	select {
	case text := <-s.pending:
		s.write(context.WithoutCancel(ctx), text)
	default:
	}
}

// write stores the text unless a newer term has written.
func (s *usageStore) write(ctx context.Context, text []byte) {
	if s.superseded || s.stored != nil && s.stored.Data[usageKey] == string(text) &&
		s.stored.Annotations[epochAnnotation] == strconv.FormatInt(s.epoch, 10) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, usageWriteTimeout)
	defer cancel()
	var err error
	for range 4 {
		next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: UsageConfigMap, Labels: map[string]string{"app.kubernetes.io/part-of": "thaw"}}}
		if s.stored != nil {
			next = s.stored.DeepCopy()
		}
		if n, bad := strconv.ParseInt(next.Annotations[epochAnnotation], 10, 64); bad == nil && n > s.epoch {
			s.superseded = true
			return
		}
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[epochAnnotation] = strconv.FormatInt(s.epoch, 10)
		next.Data = map[string]string{usageKey: string(text)}
		var now *corev1.ConfigMap
		if s.stored == nil {
			now, err = s.maps.Create(ctx, next, metav1.CreateOptions{FieldManager: "thaw"})
		} else {
			now, err = s.maps.Update(ctx, next, metav1.UpdateOptions{FieldManager: "thaw"}) // fails unless stored is the newest version
		}
		if err == nil {
			s.stored = now
			return
		}
		if !status.IsConflict(err) && !status.IsAlreadyExists(err) && !status.IsNotFound(err) {
			break
		}
		// Changed meanwhile: decide on the current object.
		if s.stored, err = s.maps.Get(ctx, UsageConfigMap, metav1.GetOptions{}); status.IsNotFound(err) {
			s.stored, err = nil, nil
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		s.log.Warn("cannot store the usage of teams", "error", err)
	}
}
