package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

type Request struct {
	At            time.Duration  // since the start of the trace
	Function      functions.Name // name in the trace; zero if it has none
	Team          string         // of the client; empty: the function's own team
	Input         int            // tokens of the prompt; 0: unknown
	Output        int            // tokens of the answer; 0: unknown
	ClientTimeout time.Duration  // the client disconnects if the answer has not begun by then; 0: never
	Low           bool           // its priority is low
}

// Requests is a trace's requests in the order of At; the first error ends it.
type Requests = iter.Seq2[Request, error]

const (
	Thaw           = "thaw"
	AzureFunctions = "azure-functions"
	Mooncake       = "mooncake"
	AzureLLM       = "azure-llm"
	Gen            = "gen"
)

var Formats = []string{Thaw, AzureFunctions, Mooncake, AzureLLM, Gen}

// Error is a mistake in a trace file. Line counts from 1; 0 is the whole file.
type Error struct {
	File    string
	Line    int
	Message string
}

func (e *Error) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
	}
	return e.File + ": " + e.Message
}

type Options struct {
	Format    string // one of Formats; empty: detected from the file
	Seed      uint64 // of all random draws
	PerMinute int    // azure-functions: the maximum of a function's calls per minute; 0: no maximum
}

type Use struct {
	Name     functions.Name
	Requests int64
}

// Trace is an open trace. It can be read many times, also concurrently.
type Trace struct {
	Format   string
	Requests int64         // approximate for Gen
	Foreign  int64         // lines of a log's file that are none of the log, which were skipped
	Span     time.Duration // from its start to its last request; for Gen to its end
	Uses     []Use         // in order of first appearance; empty if the trace names no function
	read     Requests
}

func (t *Trace) Read() Requests { return t.read }

// Open opens a trace: a file, gzip-compressed or not, or "gen:" and a Spec.
func Open(file string, o Options) (*Trace, error) {
	if text, ok := strings.CutPrefix(file, Gen+":"); ok {
		if o.Format != "" && o.Format != Gen {
			return nil, fmt.Errorf("%s: is of format %s, not %s", functions.Clip(file), Gen, o.Format)
		}
		s, err := ParseSpec(text)
		if err != nil {
			return nil, err
		}
		return generated(s, o.Seed), nil
	}
	return open(file, func() (io.ReadCloser, error) { return os.Open(file) }, o)
}

// maxForeign bounds the lines before the first of a log.
const maxForeign = 1000

// open is Open for a reader; each call of from returns one at the start.
func open(file string, from func() (io.ReadCloser, error), o Options) (*Trace, error) {
	if o.Format != "" && !slices.Contains(Formats, o.Format) {
		return nil, functions.UnknownWord(o.Format, "format of a trace", Formats)
	}
	s := &source{file: file, from: from}
	if read := 0; o.Format == "" {
		err := s.lines(func(n int, line []byte) error {
			if len(bytes.TrimSpace(line)) == 0 || line[0] == '#' {
				return nil
			}
			// A log may begin with what else was written to its file.
			if f := detect(line); f == Thaw || read == 0 {
				o.Format = f
			}
			read++
			if o.Format != "" || n >= maxForeign {
				return errStop
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if o.Format == "" {
			return nil, &Error{File: file,
				Message: "its begin is of no format thaw knows; --format says which it is: " + strings.Join(Formats, ", ")}
		}
	}
	switch o.Format {
	case AzureFunctions:
		return openMinutes(s, o)
	case Gen:
		return openSpec(s, o)
	}
	parse := map[string]parser{Thaw: parseThaw, Mooncake: parseMooncake, AzureLLM: parseLLM}[o.Format]
	return openLines(s, o.Format, parse)
}

// detect returns the format by the first line with content.
func detect(line []byte) string {
	text := string(bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")))
	switch {
	case strings.HasPrefix(text, "{") && strings.Contains(text, `"timestamp"`) && strings.Contains(text, `_length"`):
		return Mooncake
	case strings.HasPrefix(text, "{") && strings.Contains(text, `"msg"`), strings.HasPrefix(text, "time=") && strings.Contains(text, " msg="):
		return Thaw
	case strings.HasPrefix(strings.ToUpper(text), "TIMESTAMP,"):
		return AzureLLM
	case strings.HasPrefix(text, "Hash") && strings.Contains(text, ","):
		return AzureFunctions
	}
	if key, _, ok := strings.Cut(text, ":"); ok && slices.Contains(specKeys(), key) {
		return Gen
	}
	return ""
}

// source is a file that can be read several times.
type source struct {
	file string
	from func() (io.ReadCloser, error)
}

func (s *source) fail(line int, format string, args ...any) error {
	return &Error{File: s.file, Line: line, Message: catalog.Plain(fmt.Sprintf(format, args...))}
}

// errStop ends lines early without an error.
var errStop = errors.New("stop")

const maxLine = 1 << 20

// reader opens the file, decompressed.
func (s *source) reader() (*bufio.Reader, io.Closer, error) {
	f, err := s.from()
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReaderSize(f, 64<<10)
	if head, _ := r.Peek(2); len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			f.Close()
			return nil, nil, s.fail(0, "%v", err)
		}
		r = bufio.NewReaderSize(z, 64<<10)
	}
	return r, f, nil
}

// lines calls each with every line and its number; the line is valid until each returns.
func (s *source) lines(each func(n int, line []byte) error) error {
	r, closer, err := s.reader()
	if err != nil {
		return err
	}
	defer closer.Close()
	var long []byte
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			long = long[:0]
			for err == bufio.ErrBufferFull && len(long) <= maxLine {
				long = append(long, line...)
				line, err = r.ReadSlice('\n')
			}
			long = append(long, line...)
			line = long
		}
		if len(line) > maxLine {
			return s.fail(n, "a line of more than %d bytes", maxLine)
		}
		if err != nil && err != io.EOF {
			return s.fail(n, "%v", err)
		}
		if len(line) > 0 {
			if e := each(n, bytes.TrimRight(line, "\r\n")); e == errStop {
				return nil
			} else if e != nil {
				return e
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

// parser parses one line into a request and its wall-clock time. ok is false for a valid
// line that is no request.
type parser func(line []byte) (at time.Time, r Request, ok bool, err error)

// openLines reads a file with one request per line, to find mistakes and how far the
// lines are out of order.
func openLines(s *source, format string, parse parser) (*Trace, error) {
	t := &Trace{Format: format}
	var first, last time.Time // the earliest arrival, and the latest so far
	var delay time.Duration   // the largest delay of a line behind an earlier one
	index := map[functions.Name]int{}
	requests := func(each func(n int, at time.Time, r Request) error) (foreign int64, err error) {
		err = s.lines(func(n int, line []byte) error {
			at, r, ok, err := parse(line)
			if err == errForeign {
				foreign++
			} else if err != nil {
				return s.fail(n, "%v", err)
			}
			if !ok {
				return nil
			}
			return each(n, at, r)
		})
		return foreign, err
	}
	var err error
	t.Foreign, err = requests(func(_ int, at time.Time, r Request) error {
		if t.Requests == 0 || at.Before(first) {
			first = at
		}
		if t.Requests == 0 || at.After(last) {
			last = at
		}
		delay = max(delay, last.Sub(at))
		t.Requests++
		if r.Function != (functions.Name{}) {
			i, ok := index[r.Function]
			if !ok {
				i = len(t.Uses)
				index[r.Function] = i
				t.Uses = append(t.Uses, Use{Name: r.Function})
			}
			t.Uses[i].Requests++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if t.Requests == 0 {
		return nil, s.fail(0, "there is no request in it")
	}
	t.Span = last.Sub(first)
	t.read = func(yield func(Request, error) bool) {
		var held queue[Request]
		var newest time.Duration
		stopped := false // by the consumer
		_, err := requests(func(n int, at time.Time, r Request) error {
			r.At = max(0, at.Sub(first))
			newest = max(newest, r.At)
			heap.Push(&held, item[Request]{int64(r.At), int32(n), r})
			for len(held) > 0 && held[0].at <= int64(newest-delay) {
				if !yield(heap.Pop(&held).(item[Request]).v, nil) {
					stopped = true
					return errStop
				}
			}
			return nil
		})
		if err != nil {
			yield(Request{}, err)
			return
		}
		for !stopped && len(held) > 0 {
			if !yield(heap.Pop(&held).(item[Request]).v, nil) {
				return
			}
		}
	}
	return t, nil
}

// queue is a heap by time; at equal times the smaller order comes first.
type queue[T any] []item[T]

type item[T any] struct {
	at    int64
	order int32
	v     T
}

func (q queue[T]) Len() int { return len(q) }

func (q queue[T]) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}

func (q queue[T]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue[T]) Push(x any) { *q = append(*q, x.(item[T])) }

func (q *queue[T]) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// ByUse sorts the uses by requests, descending, then by name.
func ByUse(uses []Use) []Use {
	return slices.SortedFunc(slices.Values(uses), func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Name.String(), b.Name.String()))
	})
}
