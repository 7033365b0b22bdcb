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

	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// Accounts is the ConfigMap in which what teams have used outlives a reign: a day's
// budget is none the larger for a controller that ends.
const Accounts = "thaw-accounts"

const accountsKey = "teams.json"

// accountsFor bounds one write of the accounts.
const accountsFor = 5 * time.Second

// accounts keeps the accounts of one reign. What steer hands over between two turns
// is taken at once and written by Run; of several only the newest is.
type accounts struct {
	maps  core.ConfigMapInterface
	epoch int64
	log   *slog.Logger
	texts chan []byte

	at   *corev1.ConfigMap // as last read or written; nil there is none
	over bool              // a newer reign writes
}

func newAccounts(maps core.ConfigMapInterface, epoch int64, log *slog.Logger) *accounts {
	return &accounts{maps: maps, epoch: epoch, log: log, texts: make(chan []byte, 1)}
}

// open reads what the reign before has left. The ledger is good in any case; an
// error says what is not known.
func (a *accounts) open(ctx context.Context) (*orchestrator.Ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, accountsFor)
	defer cancel()
	var text []byte
	at, err := a.maps.Get(ctx, Accounts, metav1.GetOptions{})
	switch {
	case err == nil:
		a.at, text = at, []byte(at.Data[accountsKey])
	case status.IsNotFound(err):
		err = nil
	}
	ledger, bad := orchestrator.NewLedger(text, a.put)
	if err == nil {
		err = bad
	}
	if err != nil {
		return ledger, fmt.Errorf("accounts of teams (ConfigMap %s): %w", Accounts, err)
	}
	return ledger, nil
}

// put takes a text in the place of one that was not written yet.
func (a *accounts) put(text []byte) {
	for {
		select {
		case a.texts <- text:
			return
		default:
		}
		select {
		case <-a.texts:
		default:
		}
	}
}

// Run writes what comes until ctx ends.
func (a *accounts) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case text := <-a.texts:
			if ctx.Err() != nil {
				a.put(text) // it is last's
				return nil
			}
			a.write(ctx, text)
		}
	}
}

// last writes what came last, when nobody puts anything any more and Run has ended.
func (a *accounts) last(ctx context.Context) {
	select {
	case text := <-a.texts:
		a.write(context.WithoutCancel(ctx), text)
	default:
	}
}

// write replaces the text, unless a newer reign has written.
func (a *accounts) write(ctx context.Context, text []byte) {
	if a.over || a.at != nil && a.at.Data[accountsKey] == string(text) && a.at.Annotations[epochAnnotation] == strconv.FormatInt(a.epoch, 10) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, accountsFor)
	defer cancel()
	var err error
	for range 4 {
		next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Accounts, Labels: map[string]string{"app.kubernetes.io/part-of": "thaw"}}}
		if a.at != nil {
			next = a.at.DeepCopy()
		}
		if n, bad := strconv.ParseInt(next.Annotations[epochAnnotation], 10, 64); bad == nil && n > a.epoch {
			a.over = true
			return
		}
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[epochAnnotation] = strconv.FormatInt(a.epoch, 10)
		next.Data = map[string]string{accountsKey: string(text)}
		var now *corev1.ConfigMap
		if a.at == nil {
			now, err = a.maps.Create(ctx, next, metav1.CreateOptions{FieldManager: "thaw"})
		} else {
			now, err = a.maps.Update(ctx, next, metav1.UpdateOptions{FieldManager: "thaw"}) // of this version, or not at all
		}
		if err == nil {
			a.at = now
			return
		}
		if !status.IsConflict(err) && !status.IsAlreadyExists(err) && !status.IsNotFound(err) {
			break
		}
		// Somebody wrote since, or took it away: what is there now decides.
		if a.at, err = a.maps.Get(ctx, Accounts, metav1.GetOptions{}); status.IsNotFound(err) {
			a.at, err = nil, nil
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		a.log.Warn("the accounts of teams are not kept", "error", err)
	}
}
