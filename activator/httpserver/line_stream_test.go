package httpserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLineStream: values come out as lines, work that fails before its first value is an
// error, and Close ends the work.
func TestLineStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var draining atomic.Bool
		stream := func(produce func(context.Context, func(any)) error) (io.ReadCloser, error) {
			var res Response
			err := StreamLines(NewRequest(nil, "GET", "/", nil, nil, &Context{}, draining.Load), &res, produce)
			if (res.Stream != nil) != (FieldOf(res.Fields, "content-type") == "application/x-ndjson") {
				t.Errorf("%v with the fields %v", res.Stream, res.Fields)
			}
			return res.Stream, err
		}
		body, err := stream(func(_ context.Context, emit func(any)) error {
			emit(map[string]int{"a": 1})
			time.Sleep(40 * time.Second) // two empty lines keep it alive
			emit("last")
			return errors.New("said before it ended")
		})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(body)
		if want := "{\"a\":1}\n\n\n\"last\"\n"; err != nil || string(b) != want {
			t.Errorf("%q %v, want %q", b, err, want)
		}
		body.Close()

		broken := errors.New("no such thing")
		if body, err = stream(func(context.Context, func(any)) error { return broken }); body != nil || err != broken {
			t.Errorf("%v %v", body, err)
		}
		if body, err = stream(func(context.Context, func(any)) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(body); len(b) != 0 || err != nil {
			t.Errorf("%q %v", b, err)
		}
		body.Close()

		var ended atomic.Bool
		produce := func(ctx context.Context, emit func(any)) error {
			emit(1)
			<-ctx.Done()
			ended.Store(true)
			return ctx.Err()
		}
		if body, err = stream(produce); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(body).ReadString('\n'); line != "1\n" || err != nil {
			t.Errorf("%q %v", line, err)
		}
		if body.Close(); !ended.Load() {
			t.Error("closed, and the work goes on")
		}

		ended.Store(false)
		time.AfterFunc(5*time.Second, func() { draining.Store(true) })
		if body, err = stream(produce); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := io.ReadAll(body); err != nil || !ended.Load() || time.Since(began) > 7*time.Second {
			t.Errorf("a server that ends waits %v for it (%v)", time.Since(began), err)
		}
		body.Close()
	})
}
