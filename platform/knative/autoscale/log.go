package autoscale

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quietLogger is Knative's log, which goes to ours: its errors as warnings, since it tries
// again, and nothing else of it.
func quietLogger(log *slog.Logger) *zap.SugaredLogger { return zap.New(errorCore{log: log}).Sugar() }

// repeatedError is what Knative says of each error before it says it again with more to it.
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

// attributes keeps what says which object and why.
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
