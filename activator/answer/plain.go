package answer

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Behind its finish_reason a stream may be silent for FinishedIdle, and for UsageIdle where a usage
// chunk is still to come.
const FinishedIdle, UsageIdle = 2 * time.Second, 10 * time.Second

// IdleOfFinished is how long a stream may be silent behind its finish_reason.
func IdleOfFinished(seen *openai.Stream, wantsUsage bool) time.Duration {
	if wantsUsage && !seen.Usage.Known && !seen.Done {
		return UsageIdle
	}
	return FinishedIdle
}

// readStream reads the stream that an engine answers a plain request with: all of it up to
// maxUnstreamed bytes, or its first error.
func (a Answer) readStream(want *Want) Answer {
	var seen openai.Stream
	a.convertLineEnds(a.Begin)
	seen.Pass(a.Begin)
	limit, spoke := time.Now().Add(want.Most), true
	for len(a.Begin) < maxUnstreamed {
		idle := want.Idle
		if seen.Finished && want.Choices == 1 || len(seen.Said) > 0 && !seen.Token {
			idle = min(idle, IdleOfFinished(&seen, true))
		}
		if spoke || !seen.Finished { // comments are no reason to wait longer
			a.Response.LimitSilence(idle)
		}
		a.Begin = slices.Grow(a.Begin, 4<<10)
		from, n := len(a.Begin), 0
		var err error
		if !seen.Done && !seen.Failed {
			n, err = a.Read(a.Begin[from:cap(a.Begin)])
		}
		if a.Begin = a.Begin[:from+n]; a.convertLineEnds(a.Begin) {
			seen, from = openai.Stream{}, 0
		}
		seen.Pass(a.Begin[from:])
		spoke = openai.HasData(a.Begin[from:])
		if err == nil && time.Now().After(limit) {
			err = upstream.ErrSilent // only comments, or tokens without an end
		}
		if err == nil && (seen.Done || seen.Failed) {
			a.ReadOut(make([]byte, 1<<10))
			err = io.EOF
		}
		if err != nil {
			return a.streamEnded(&seen, want, err)
		}
	}
	return a
}

// ReadOut waits, up to a second, for the end of a body of which nothing more is needed, so
// that its connection can be used again.
func (a *Answer) ReadOut(buf []byte) {
	a.Response.LimitSilence(time.Second)
	for {
		if _, err := a.Read(buf); err != nil {
			return
		}
	}
}

// streamEnded is the Answer whose stream, read so far, ended with err.
func (a Answer) streamEnded(seen *openai.Stream, want *Want, err error) Answer {
	if err == io.EOF {
		seen.Pass([]byte{'\n'}) // the last line need not be ended
	}
	switch {
	case seen.Failed:
		before := len(a.Begin)
		a.Begin = errorEvent(a.Begin)
		a.Began = len(a.Begin) < before
	case seen.Done, seen.Finished && err == io.EOF, seen.Finished && want.Choices == 1 && errors.Is(err, upstream.ErrSilent):
	case err == io.EOF && beginsObject(a.Begin): // JSON under the media type of a stream
		a.Events = false
	default:
		if err == io.EOF && len(a.Begin) == 0 {
			err = io.ErrUnexpectedEOF
		}
		if len(seen.Said) > 0 && !seen.Token { // words in place of tokens
			a.Begin = slices.Concat([]byte("event: error\ndata: "), seen.Said, []byte("\n\n"))
			break
		}
		a.Response.Close()
		return Answer{Err: err, Begin: a.Begin}
	}
	a.End = true
	return a
}

// errorEvent returns events from the first error on.
func errorEvent(events []byte) []byte {
	for rest := append(events, '\n'); len(rest) > 0; { // the last line need not be ended
		if e, _ := openai.Failure(rest); e != nil {
			return rest
		}
		_, rest, _ = bytes.Cut(rest, []byte{'\n'})
	}
	return events
}
