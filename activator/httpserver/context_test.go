package httpserver

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestRequestContext(t *testing.T) {
	l := &Context{}
	var ctx context.Context = l
	if ctx.Err() != nil || context.Cause(ctx) != nil || ctx.Value("x") != nil {
		t.Error("it has ended before it began")
	}
	fired := make(chan string, 4)
	stop := context.AfterFunc(ctx, func() { fired <- "stopped" })
	if !stop() || stop() {
		t.Error("stop")
	}
	own := l.AfterFunc(func() { fired <- "stopped too" })
	last := l.AfterFunc(func() { fired <- "ended" })
	if !own() || own() {
		t.Error("own stop")
	}
	child, cancel := context.WithTimeoutCause(ctx, time.Hour, nil)
	defer cancel()
	done := l.Done()
	l.End(ErrGone)
	l.End(ErrDraining) // too late
	<-done
	<-l.Done()
	<-child.Done()
	if s := <-fired; s != "ended" || last() {
		t.Error(s)
	}
	for _, c := range []context.Context{ctx, child} {
		if context.Cause(c) != ErrGone || !errors.Is(c.Err(), context.Canceled) {
			t.Error(c.Err(), context.Cause(c))
		}
	}
	if l.AfterFunc(func() { fired <- "late" })() || <-fired != "late" {
		t.Error("late")
	}
	select {
	case s := <-fired:
		t.Error(s)
	default:
	}
}
