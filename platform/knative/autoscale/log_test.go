package autoscale

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestQuietLogger: an error of Knative is logged once, with its object, and nothing else is.
func TestQuietLogger(t *testing.T) {
	var out bytes.Buffer
	log := quietLogger(slog.New(slog.NewTextHandler(&out, nil)))
	log = log.With(zap.String("knative.dev/traceid", "x"), zap.String("knative.dev/key", "a/llama-00001"))
	log.Info("Reconcile succeeded")
	log.Warn("A warning")
	log.Errorw("Returned an error", zap.Error(errors.New("away")))
	log.Errorw("Reconcile error", zap.Duration("duration", 1), zap.Error(errors.New("away")))
	got := out.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="knative: Reconcile error" knative.dev/key=a/llama-00001 error=away`) || strings.Contains(got, "traceid") {
		t.Errorf("%s", got)
	}
}
