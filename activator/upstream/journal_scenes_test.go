package upstream

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	headOK      = "HTTP/1.1 200 OK\r\n"
	headChunked = headOK + "transfer-encoding: chunked\r\n\r\n"
	second      = time.Second
)

// journalAnswers are the answers of the engine, by path.
var journalAnswers = map[string][]any{
	"/ok":           {okHello},
	"/soon":         {100 * time.Millisecond, okHello},
	"/seconds":      {5 * second, okHello},
	"/minute":       {time.Minute, okHello},
	"/quarter":      {15 * time.Minute, okHello},
	"/never":        {24 * time.Hour},
	"/fields":       {headOK + "X: y\r\nthaw-unsolicited: 2 first\r\nkeep-alive: 5\r\ncontent-length: 1\r\n\r\na"},
	"/informs":      {"HTTP/1.1 103 E\r\nx: y\r\n\r\n", second, "HTTP/1.1 102 P\r\n\r\n", second, okHello},
	"/none":         {"HTTP/1.1 204 No Content\r\n\r\n"},
	"/close":        {headOK + "connection: close\r\ncontent-length: 1\r\n\r\na"},
	"/old":          {"HTTP/1.0 200 OK\r\n\r\n", second, "a", ends{}},
	"/stream":       {second, headChunked, second, "1\r\na\r\n", second, "1\r\nb\r\n", second, "0\r\n\r\n"},
	"/endless":      {headChunked + "1\r\na\r\n", time.Hour},
	"/short":        {headOK + "content-length: 5\r\n\r\nhe", second, ends{}},
	"/cut chunk":    {headChunked + "5\r\nhe", second, ends{}},
	"/bad chunk":    {headChunked + "x\r\n"},
	"/long chunk":   {headChunked + "1\r\nab\r\n"},
	"/bad":          {"HTTP/2 200 OK\r\n\r\n"},
	"/switch":       {"HTTP/1.1 101 S\r\n\r\n"},
	"/dies":         {ends{}},
	"/dies#2":       {ends{}},
	"/dies soon":    {150 * time.Millisecond, ends{}},
	"/dies soon#2":  {okHello},
	"/dies late":    {200 * time.Millisecond, ends{}},
	"/dies once":    {ends{}},
	"/dies once#2":  {okHello},
	"/dies in head": {"HTTP/1.1 2", ends{}},
	"/slash":        {"HTTP/1.1 307 T\r\nlocation: /slash/\r\nthaw-unsolicited: 3 first\r\ncontent-length: 2\r\n\r\nno"},
	"/slash/":       {headOK + "thaw-unsolicited: 4\r\ncontent-length: 1\r\n\r\na"},
	"/gone":         {"HTTP/1.1 308 P\r\nlocation: /gone/\r\ncontent-length: 2\r\n\r\nno"},
	"/gone/":        {"HTTP/1.1 307 T\r\nlocation: /gone\r\ncontent-length: 2\r\n\r\nno"},
	"/refuses":      {"unread", "HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno", ends{}},
	"/late end":     {headChunked + "1\r\na\r\n0\r\n", second, "\r\n"},
	"/late trailer": {headChunked + "1\r\na\r\n0\r\nx: y\r\n", second, "\r\n"},
	"/more":         {okHello + "more"},
	"/reads slowly": {"unread", time.Hour},
	"/reads late":   {"unread", 300 * time.Millisecond, reads{}, okHello},
	"/dies read":    {"unread", 300 * time.Millisecond, reads{}, ends{}},
	"/dies read#2":  {"unread", 300 * time.Millisecond, reads{}, 100 * time.Millisecond, okHello},
}

// journals are the scenes of TestJournals.
var journals = map[string]func(w *wire){
	"answers": func(w *wire) {
		for _, path := range []string{"/ok", "/fields", "/informs", "/none", "/close", "/old", "/stream", "/late%20end",
			"/late%20trailer", "/ok"} {
			w.get(path, 20*second)
		}
	},
	"broken answers": func(w *wire) {
		for _, path := range []string{"/short", "/cut%20chunk", "/bad%20chunk", "/long%20chunk", "/bad", "/switch", "/dies%20in%20head"} {
			w.get("/ok", 0)
			w.get(path, 20*second)
		}
	},
	"bounds": func(w *wire) {
		w.get("/ok", 20*second)
		w.get("/minute", 0)
		w.get("/minute", 2*time.Minute)
		w.get("/minute", 59*second)
		w.get("/quarter", time.Hour)
		w.get("/quarter", time.Hour)
		w.get("/quarter", 10*time.Minute)
		w.get("/quarter", 9*time.Minute)
	},
	"bounds within an answer": func(w *wire) {
		for _, d := range []time.Duration{0, 500 * time.Millisecond, 8 * second} {
			r := w.do(context.Background(), Request{Path: "/stream", Bound: 20 * second})
			if d > 0 {
				r.LimitSilence(d)
				time.Sleep(10 * time.Millisecond)
				r.LimitSilence(d)
			}
			w.read(r)
		}
		r := w.do(context.Background(), Request{Path: "/endless", Bound: time.Hour})
		r.LimitSilence(8 * second)
		r.Read(make([]byte, 1))
		time.Sleep(2 * second)
		r.LimitSilence(8 * second)
		w.read(r)
		r.LimitSilence(second)
	},
	"an engine dies of the first request": func(w *wire) { w.get("/dies", 0); w.get("/ok", 0) },
	"an engine dies of each request":      func(w *wire) { w.get("/ok", 0); w.get("/dies", 0); w.get("/ok", 0) },
	"an engine had closed it":             func(w *wire) { w.get("/ok", 0); w.get("/dies%20once", 0) },
	"an engine dies soon":                 func(w *wire) { w.get("/ok", 0); w.get("/dies%20soon", 0) },
	"an engine dies late":                 func(w *wire) { w.get("/ok", 0); w.get("/dies%20late", 0) },
	"an engine dies, and refuses": func(w *wire) {
		w.get("/ok", 0)
		w.refuses = syscall.ECONNREFUSED
		w.get("/dies", 0)
		w.get("/dies", 0)
		w.refuses = errors.New("no route")
		w.get("/ok", 0)
	},
	"a request that was sent before": func(w *wire) {
		w.get("/ok", 0)
		w.read(w.do(context.Background(), Request{Path: "/dies", Fresh: true}))
		w.get("/ok", 0)
	},
	"bodies": func(w *wire) {
		for _, n := range []int{1, oneWrite, oneWrite + 1, 5 << 20} {
			w.read(w.do(context.Background(), Request{Path: "/ok", Body: [][]byte{[]byte(strings.Repeat("b", n))}}))
		}
		w.read(w.do(context.Background(), Request{Path: "/ok", Body: [][]byte{nil, []byte("b"), nil}}))
	},
	"bodies that are not read": func(w *wire) {
		body := [][]byte{[]byte(strings.Repeat("b", 3<<20))}
		w.read(w.do(context.Background(), Request{Path: "/refuses", Body: body}))
		w.read(w.do(context.Background(), Request{Path: "/reads%20slowly", Body: body}))
		w.get("/ok", 0)
	},
	"bodies that are read late": func(w *wire) {
		post := func(path string, size int) {
			w.read(w.do(context.Background(), Request{Path: path, Body: [][]byte{[]byte(strings.Repeat("b", size))}}))
			w.peer()
		}
		post("/reads%20late", 3<<20)
		post("/dies%20read", oneWrite+1)
		post("/dies%20read", oneWrite)
	},
	"bodies long after others": func(w *wire) {
		w.client.o.IdleTimeout = time.Hour
		for _, d := range []time.Duration{10 * second, 10 * second, time.Minute} {
			w.get("/ok", 0)
			time.Sleep(d)
		}
		w.get("/ok", 0)
	},
	"cancelled":            cancelled,
	"cancelled, by others": func(w *wire) { w.plain = true; cancelled(w) },
	"slow dials": func(w *wire) {
		w.slow = 4 * second
		w.get("/ok", second)
		w.client.CloseIdle()
		w.slow = 6 * second
		w.get("/ok", time.Hour)
	},
	"cut": func(w *wire) {
		for _, path := range []string{"/endless", "/never"} {
			done := make(chan struct{})
			w.get("/ok", 0)
			go func() { defer close(done); w.get(path, 0) }()
			time.Sleep(second)
			w.client.AbortThrough("e:2")
			w.traffic()
			w.client.AbortThrough("e:1")
			<-done
			w.peer()
		}
		w.get("/ok", 0)
		w.client.AbortThrough("e:1") // an idle one
		w.peer()
		w.get("/ok", 0)
	},
	"cut as it dies of a second request": func(w *wire) {
		w.get("/ok", 0)
		time.AfterFunc(100*time.Millisecond, func() { w.client.AbortThrough("e:1") })
		w.get("/minute", 0)
	},
	"traffic": func(w *wire) {
		w.traffic()
		var all sync.WaitGroup
		all.Go(func() { w.get("/stream", 0) })
		time.Sleep(500 * time.Millisecond)
		all.Go(func() { w.get("/minute", 0) })
		for range 6 {
			w.traffic()
			time.Sleep(second)
		}
		all.Wait()
		w.traffic()
		w.get("/never", second)
		w.traffic()
	},
	"idle connections": func(w *wire) {
		var open []*Response
		for range 5 {
			open = append(open, w.do(context.Background(), Request{Path: "/ok"}))
		}
		for _, r := range open {
			w.read(r)
			w.peer()
			time.Sleep(900 * time.Millisecond)
		}
		time.Sleep(700 * time.Millisecond)
		w.get("/ok", 0)
		time.Sleep(10 * second)
		w.peer()
		w.get("/ok", 0)
		time.Sleep(4100 * time.Millisecond)
		w.get("/ok", 0)
	},
	"answers that are not read": func(w *wire) {
		w.do(context.Background(), Request{Path: "/ok"}).Close()
		r := w.do(context.Background(), Request{Path: "/ok"})
		io.ReadFull(r, make([]byte, 5))
		r.Close()
		r.Close()
		w.do(context.Background(), Request{Path: "/none"}).Close()
		w.do(context.Background(), Request{Path: "/stream"}).Close()
		r = w.do(context.Background(), Request{Path: "/stream"})
		r.Read(make([]byte, 1))
		r.Close()
	},
	"redirects": func(w *wire) {
		w.get("/slash", 0)
		w.get("/gone", 0)
		w.answers = map[string][]any{"/slash": journalAnswers["/slash"], "/slash/": {ends{}}, "/slash/#1": {200 * time.Millisecond, ends{}}}
		w.get("/slash", 0)
		w.get("/slash", 0)
	},
	"a client that is closed": func(w *wire) {
		r := w.do(context.Background(), Request{Path: "/stream"})
		w.get("/ok", 0)
		w.client.Close()
		w.get("/ok", 0)
		w.client.CloseIdle()
		w.get("/ok", 0)
		w.read(r)
	},
	"answers that are too long": func(w *wire) {
		other := w.do(context.Background(), Request{Path: "/more"})
		beside := w.do(context.Background(), Request{Path: "/ok"})
		w.get("/ok", 0)
		w.read(other)
		w.peer()
		w.get("/fields", 0) // of a server that reports as well
		w.peer()
		w.read(beside)
		for range 2 {
			w.get("/more", 0)
		}
		w.peer()
		w.get("/slash", 0) // where the first answer of two reports
		w.get("/ok", 0)
		w.refuses = errors.New("no route")
		w.get("/ok", 0)
		w.peer()
		w.refuses = nil
		w.get("/more", 0)
		open := w.do(context.Background(), Request{Path: "/endless"})
		w.refuses = syscall.ECONNREFUSED
		w.get("/ok", 0) // it has a connection still
		w.peer()
		open.Close()
		w.get("/ok", 0)
		w.refuses = nil
		w.get("/more", 0)
		w.refuses = syscall.ECONNREFUSED
		w.get("/ok", 0)
	},
	"few threads":           fewThreads,
	"few threads, of ours":  func(w *wire) { w.client.o.Framed = true; fewThreads(w) },
	"few threads, over TLS": fewThreads,
}

// fewThreads has requests beside others, of which one waits for long on a connection of its own.
func fewThreads(w *wire) {
	for range minAnswers + 2 {
		w.get("/soon", 0)
	}
	var all sync.WaitGroup
	one := w.do(context.Background(), Request{Path: "/soon"})
	two := w.do(context.Background(), Request{Path: "/soon"})
	three := w.do(context.Background(), Request{Path: "/soon"})
	w.read(two)
	w.read(three)
	w.peer()
	var more []*Response
	for range 2 {
		more = append(more, w.do(context.Background(), Request{Path: "/ok"}))
	}
	all.Go(func() { w.get("/seconds", 0) }) // beside the others, and waits
	time.Sleep(100 * time.Millisecond)
	for _, r := range more {
		w.read(r)
	}
	w.peer()
	time.Sleep(second) // longer than its patience
	w.peer()
	w.read(one)
	w.get("/ok", 0)
	w.peer()
	all.Wait()
	w.peer()
	w.get("/ok", 0)
	w.get("/minute", 0) // on the connection that had waited
	w.peer()
}

// cancelled has clients leave at each point of a request.
func cancelled(w *wire) {
	leave := func(path string, after time.Duration) {
		ctx, cancel := context.WithCancelCause(context.Background())
		if after == 0 {
			cancel(errors.New("the client left"))
		} else {
			defer time.AfterFunc(after, func() { cancel(errors.New("the client left")) }).Stop()
		}
		w.read(w.do(ctx, Request{Path: path, Bound: time.Hour}))
		w.peer()
		cancel(errors.New("too late"))
		time.Sleep(10 * time.Millisecond)
		w.traffic()
	}
	leave("/ok", 0)
	leave("/ok", second)
	leave("/never", second)
	leave("/endless", second)
	leave("/ok", second)
	w.client.CloseIdle()
	w.slow = 3 * second
	leave("/ok", second)
	leave("/ok", 10*second)
}
