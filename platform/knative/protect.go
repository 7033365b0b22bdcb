package knative

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/thaw-dev/thaw/functions"
)

// Protect calls f, which reads one object of a tenant, and returns its panic as an error.
// Without it one bad object ends the controller of the whole cluster, and that of the
// next leader.
func Protect(log *slog.Logger, object string, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("an object cannot be read: panic", "object", object, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s cannot be read: %s", object, functions.Clip(fmt.Sprint(p)))
		}
	}()
	f()
	return nil
}
