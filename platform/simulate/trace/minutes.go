package trace

import (
	"cmp"
	"encoding/csv"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const (
	maxMinutes = 60 * 24 * 31
	maxCalls   = 10_000_000 // of one function in one minute
)

// minutes is a function's calls in each minute with calls.
type minutes struct {
	name  functions.Name
	calls []calls
}

type calls struct {
	minute uint32
	n      uint32
}

// openMinutes reads a CSV with a row per function: text columns (HashFunction among
// them), then one column per minute, named 1, 2, … or minute_1, …. It keeps only minutes
// with calls.
func openMinutes(s *source, o Options) (*Trace, error) {
	r, closer, err := s.reader()
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	in := csv.NewReader(r)
	in.ReuseRecord = true
	head, err := in.Read()
	if err != nil {
		return nil, s.csvError(err)
	}
	column, name, whole, seen := make([]int, len(head)), -1, 0, map[int]bool{}
	for i, h := range head {
		h = strings.TrimPrefix(strings.TrimSpace(h), "\ufeff")
		column[i] = -1
		if n, err := strconv.Atoi(strings.TrimPrefix(h, "minute_")); err == nil && n >= 1 && n <= maxMinutes {
			if seen[n] {
				return nil, s.fail(1, "two columns are minute %d", n)
			}
			column[i], seen[n] = n-1, true
			whole = max(whole, n)
		} else if name < 0 && strings.EqualFold(h, "HashFunction") {
			name = i
		}
	}
	if name < 0 {
		return nil, s.fail(1, "no column HashFunction")
	}
	if whole == 0 {
		return nil, s.fail(1, "no columns of minutes, called 1, 2, … or minute_1, …")
	}
	t := &Trace{Format: AzureFunctions}
	var rows []minutes
	taken := map[string]bool{}
	last := 0
	for {
		row, err := in.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, s.csvError(err)
		}
		m := minutes{name: functions.Name{Team: functions.DefaultTeam, Name: hashed(row[name], len(rows), taken)}}
		total := int64(0)
		for i, cell := range row {
			if column[i] < 0 || cell == "0" || cell == "" {
				continue
			}
			n, err := strconv.ParseUint(strings.TrimSpace(cell), 10, 32)
			if err != nil || n > maxCalls {
				line, _ := in.FieldPos(i)
				return nil, s.fail(line, "%s: %q is no number of calls in a minute", "minute "+strconv.Itoa(column[i]+1), functions.Clip(cell))
			}
			if o.PerMinute > 0 {
				n = min(n, uint64(o.PerMinute))
			}
			if n > 0 {
				m.calls = append(m.calls, calls{minute: uint32(column[i]), n: uint32(n)})
				total += int64(n)
				last = max(last, column[i])
			}
		}
		if total == 0 {
			continue
		}
		slices.SortFunc(m.calls, func(a, b calls) int { return int(a.minute) - int(b.minute) })
		rows = append(rows, m)
		t.Uses = append(t.Uses, Use{Name: m.name, Requests: total})
		t.Requests += total
	}
	if t.Requests == 0 {
		return nil, s.fail(0, "there is no request in it")
	}
	t.Span = time.Duration(last+1) * time.Minute
	t.read = func(yield func(Request, error) bool) { spreadOverMinute(rows, last, o.Seed, yield) }
	return t, nil
}

// spreadOverMinute yields the calls of each minute at uniformly drawn times. Only one minute's
// calls are in memory. A function's times in a minute depend only on the seed, the
// function and the minute.
func spreadOverMinute(rows []minutes, last int, seed uint64, yield func(Request, error) bool) {
	type arrival struct {
		at  int64
		row int32
	}
	next := make([]int, len(rows)) // next index of each row's calls
	var now []arrival
	for minute := range last + 1 {
		now = now[:0]
		for i := range rows {
			c := rows[i].calls
			if next[i] >= len(c) || int(c[next[i]].minute) != minute {
				continue
			}
			draw := rand.New(rand.NewPCG(seed, uint64(i)<<32|uint64(minute)))
			for range c[next[i]].n {
				now = append(now, arrival{draw.Int64N(int64(time.Minute)), int32(i)})
			}
			next[i]++
		}
		slices.SortFunc(now, func(a, b arrival) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.row, b.row)) })
		begin := time.Duration(minute) * time.Minute
		for _, a := range now {
			if !yield(Request{At: begin + time.Duration(a.at), Function: rows[a.row].name}, nil) {
				return
			}
		}
	}
}

// hashed makes a name from a hash: its first digits, with a suffix if they are taken.
func hashed(hash string, row int, taken map[string]bool) string {
	hash = strings.ToLower(strings.TrimSpace(hash))
	name := "f-" + hash[:min(len(hash), 12)]
	if !functions.IsLabel(name) {
		name = "f-" + strconv.Itoa(row+1)
	}
	for base, n := name, 2; taken[name]; n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	taken[name] = true
	return name
}

// csvError is the error of the CSV reader with its place.
func (s *source) csvError(err error) error {
	if e, ok := errors.AsType[*csv.ParseError](err); ok {
		return s.fail(e.Line, "%v", e.Err)
	}
	if err == io.EOF {
		return s.fail(1, "the file is empty")
	}
	return s.fail(0, "%v", err)
}
