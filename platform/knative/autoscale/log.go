package autoscale

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quietLogger passes Knative's errors to log as warnings, since Knative retries, and drops
// the rest.
func quietLogger(log *slog.Logger) *zap.SugaredLogger { return zap.New(errorCore{log: log}).Sugar() }

// repeatedError is a message that Knative logs again with more detail.
const repeatedError = "Returned an error"

type errorCore struct{ log *slog.Logger }

func (c errorCore) Enabled(l zapcore.Level) bool { return l >= zapcore.ErrorLevel }

func (c errorCore) With(fields []zapcore.Field) zapcore.Core {
	return errorCore{c.log.With(attributes(fields)...)}
}

func (c errorCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && e.Message != repeatedError {
		return to.AddCore(e, c)
	}
	return to
}

func (c errorCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Log(context.Background(), slog.LevelWarn, "knative: "+e.Message, attributes(fields)...)
	return nil
}

func (c errorCore) Sync() error { return nil }

// attributes keeps the fields with the object and the error.
func attributes(fields []zapcore.Field) []any {
	var out []any
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		switch f.Key {
		case "knative.dev/key", "error":
			f.AddTo(values)
			out = append(out, slog.Any(f.Key, values.Fields[f.Key]))
		}
	}
	return out
}
