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
	"k8s.io/client-go/util/retry"

	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/knative/secret"
	"github.com/thaw-dev/thaw/platform/quota"
)

// UsageConfigMap is the ConfigMap that keeps the usage of teams across terms, so that a
// new controller does not reset daily budgets.
const UsageConfigMap = "thaw-team-usage"

const usageKey = "teams.json"

const usageWriteTimeout = 5 * time.Second

// usageStore keeps the usage of teams for one term. The orchestrator hands over a text
// between two turns without waiting; Run writes the newest.
type usageStore struct {
	maps    core.ConfigMapInterface
	epoch   int64
	log     *slog.Logger
	pending chan []byte

	superseded bool // a newer term writes
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
		text = []byte(at.Data[usageKey])
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
	if s.superseded {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, usageWriteTimeout)
	defer cancel()
	raced := func(err error) bool {
		return status.IsConflict(err) || status.IsAlreadyExists(err) || status.IsNotFound(err)
	}
	err := retry.OnError(retry.DefaultRetry, raced, func() error {
		m, err := s.maps.Get(ctx, UsageConfigMap, metav1.GetOptions{})
		isNew := status.IsNotFound(err)
		if isNew {
			m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: UsageConfigMap, Labels: secret.Labels()}}
		} else if err != nil {
			return err
		}
		if n, bad := strconv.ParseInt(m.Annotations[epochAnnotation], 10, 64); bad == nil && n > s.epoch {
			s.superseded = true
			return nil
		}
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, epochAnnotation, strconv.FormatInt(s.epoch, 10))
		m.Data = map[string]string{usageKey: string(text)}
		if isNew {
			_, err = s.maps.Create(ctx, m, metav1.CreateOptions{FieldManager: "thaw"})
		} else {
			_, err = s.maps.Update(ctx, m, metav1.UpdateOptions{FieldManager: "thaw"}) // fails unless m is the newest version
		}
		return err
	})
	if err != nil {
		s.log.Warn("cannot store the usage of teams", "error", err)
	}
}
