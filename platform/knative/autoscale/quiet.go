package autoscale

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quiet is Knative's log, which goes to ours: its errors as warnings, since it tries
// again, and nothing else of it.
func quiet(log *slog.Logger) *zap.SugaredLogger { return zap.New(core{log: log}).Sugar() }

// twice is what Knative says of each error before it says it again with more to it.
const twice = "Returned an error"

type core struct{ log *slog.Logger }

func (c core) Enabled(l zapcore.Level) bool { return l >= zapcore.ErrorLevel }

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log.With(attributes(fields)...)}
}

func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && e.Message != twice {
		return to.AddCore(e, c)
	}
	return to
}

func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Log(context.Background(), slog.LevelWarn, "knative: "+e.Message, attributes(fields)...)
	return nil
}

func (c core) Sync() error { return nil }

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
