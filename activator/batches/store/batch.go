package store

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	Validating = "validating"
	Failed     = "failed"
	InProgress = "in_progress"
	Finalizing = "finalizing"
	Completed  = "completed"
	Expired    = "expired"
	Cancelling = "cancelling"
	Cancelled  = "cancelled"
)

// Batch is a batch as clients read it. Times are in seconds since 1970.
type Batch struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Endpoint         string            `json:"endpoint"`
	Errors           *LineErrors       `json:"errors"`
	InputFileID      string            `json:"input_file_id"`
	CompletionWindow string            `json:"completion_window"`
	Status           string            `json:"status"`
	OutputFileID     *string           `json:"output_file_id"`
	ErrorFileID      *string           `json:"error_file_id"`
	CreatedAt        int64             `json:"created_at"`
	InProgressAt     *int64            `json:"in_progress_at"`
	ExpiresAt        int64             `json:"expires_at"`
	FinalizingAt     *int64            `json:"finalizing_at"`
	CompletedAt      *int64            `json:"completed_at"`
	FailedAt         *int64            `json:"failed_at"`
	ExpiredAt        *int64            `json:"expired_at"`
	CancellingAt     *int64            `json:"cancelling_at"`
	CancelledAt      *int64            `json:"cancelled_at"`
	RequestCounts    Counts            `json:"request_counts"`
	Usage            *Usage            `json:"usage,omitzero"`
	Metadata         map[string]string `json:"metadata"`
}

// Counts are the lines of a batch: all, with an entry in its output, and with one in its
// errors.
type Counts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// LineErrors is what is wrong with the input of a batch.
type LineErrors struct {
	Object string      `json:"object"`
	Data   []LineError `json:"data"`
}

// LineError is one fault of an input; Line counts from 1.
type LineError struct {
	Code    string  `json:"code"`
	Line    *int    `json:"line"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
}

// Usage is the sum of the tokens that the engines reported.
// The details, which are not known, are there for the official clients.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int64 `json:"total_tokens"`
}

// Record is a batch with what is not shown of it.
type Record struct {
	Batch
	Team     string `json:"team"`
	KeyID    string `json:"key_id"` // of the key that made it; "" for the admin token and on an open server
	Admin    bool   `json:"admin"`
	Data     string `json:"data"`     // least class of its lines' data; "" leaves it to the team
	Keep     int64  `json:"keep"`     // how long its files are kept, in seconds
	Outcome  string `json:"outcome"`  // what its status is to be after Finalizing
	Sequence int64  `json:"sequence"` // orders the batches of a second
}

// Ended reports whether the batch has its last status.
func (b *Batch) Ended() bool {
	return b.Status == Failed || b.Status == Completed || b.Status == Expired || b.Status == Cancelled
}

// EndedAt is when the batch got its last status; 0: it has not.
func (b *Batch) EndedAt() int64 {
	if at := cmp.Or(b.CompletedAt, b.FailedAt, b.ExpiredAt, b.CancelledAt); at != nil {
		return *at
	}
	return 0
}

func (s *Store) batchPath(id, kind string) string {
	return filepath.Join(s.dir, "batches", id+"."+kind)
}

// Save writes a batch, a new one too.
func (s *Store) Save(r Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Sequence == 0 {
		s.sequence++
		r.Sequence = s.sequence
	}
	if err := s.write(s.batchPath(r.ID, "json"), r); err != nil {
		return err
	}
	s.batches[r.ID] = r
	return nil
}

func (s *Store) Batch(team, id string) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.batches[id]
	if !ok || r.Team != team {
		return Record{}, ErrNotFound
	}
	return r, nil
}

// Batches returns the batches that keep accepts, the newest first.
func (s *Store) Batches(keep func(*Record) bool) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Record
	for _, r := range s.batches {
		if keep(&r) {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Record) int { return int(b.Sequence - a.Sequence) })
	return list
}

// Lines are the entries of a batch so far. One goroutine uses them.
type Lines struct {
	parts [2]part // output and errors
}

type part struct {
	f    *os.File
	size int64
	torn bool // bytes behind size may be in the file
}

// Entry is what is read of a line of an output.
type Entry struct {
	CustomID string `json:"custom_id"`
	Response struct {
		Body jsontext.Value `json:"body"` // nil in a line of the errors without an answer
	} `json:"response"`
	Thaw Thaw  `json:"thaw"`
	End  int64 `json:"-"` // the byte at which the line ends
}

// Thaw is what an entry has beyond OpenAI's: what its line cost, by account.
type Thaw struct {
	Charges map[string]float64 `json:"charges"`
}

// OpenLines opens the entries of a batch and yields those that are there. What an entry was
// cut off at is dropped: its line is to be run again.
func (s *Store) OpenLines(id string, yield func(e Entry, failed bool)) (*Lines, error) {
	l := &Lines{}
	for i, kind := range []string{"output", "errors"} {
		f, err := os.OpenFile(s.batchPath(id, kind), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.parts[i].f = f
		if l.parts[i].size, err = readEntries(f, func(e Entry) { yield(e, i == 1) }); err == nil {
			err = f.Truncate(l.parts[i].size)
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// readEntries yields the whole lines of a file and returns where they end.
func readEntries(in io.Reader, yield func(Entry)) (size int64, err error) {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		var e Entry
		switch {
		case err == io.EOF:
			return size, nil
		case err != nil:
			return size, err
		case json.Unmarshal(line, &e, jsontext.AllowDuplicateNames(true)) != nil || e.CustomID == "":
			return size, nil
		}
		size += int64(len(line))
		e.End = size
		yield(e)
	}
}

// Append writes an entry: one line of JSON without its end. After an error nothing was
// written, and Append may be called again.
func (l *Lines) Append(line []byte, failed bool) error {
	p := &l.parts[0]
	if failed {
		p = &l.parts[1]
	}
	if p.torn {
		if err := p.f.Truncate(p.size); err != nil {
			return err
		}
		p.torn = false
	}
	line = append(bytes.Clone(line), '\n')
	if _, err := p.f.WriteAt(line, p.size); err != nil {
		p.torn = p.f.Truncate(p.size) != nil
		return err
	}
	p.size += int64(len(line))
	return nil
}

// Sync flushes the entries.
func (l *Lines) Sync() error { return errors.Join(l.parts[0].f.Sync(), l.parts[1].f.Sync()) }

// Close flushes and closes the files.
func (l *Lines) Close() error {
	var errs []error
	for _, p := range l.parts {
		if p.f != nil {
			errs = append(errs, p.f.Sync(), p.f.Close())
		}
	}
	return errors.Join(errs...)
}

// Sizes are the bytes of the output and of the errors.
func (l *Lines) Sizes() (output, errs int64) { return l.parts[0].size, l.parts[1].size }

// Publish makes the entries of a batch, which were closed, the files that the record names.
// It may be called again after a crash or an error.
func (s *Store) Publish(r Record, created int64) error {
	for _, x := range []struct {
		id         *string
		kind, name string
	}{{r.OutputFileID, "output", "output"}, {r.ErrorFileID, "errors", "error"}} {
		path := s.batchPath(r.ID, x.kind)
		if x.id == nil {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if _, err := s.File(r.Team, *x.id); err == nil {
			continue
		}
		f := File{ID: *x.id, Team: r.Team, Name: strings.TrimPrefix(r.ID, "batch_") + "_" + x.name + ".jsonl", Purpose: "batch_output",
			Created: created, Expires: created + r.Keep}
		if _, err := os.Stat(path); err != nil { // it was moved before the crash
			path = s.contentOf(f.ID)
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		f.Bytes = info.Size()
		if _, err := s.add(f, path); err != nil {
			return err
		}
	}
	return nil
}
