package trace

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// Spec is the parameters of a generated trace, on a command line as
// gen:models=100,requests=100000,burst=8, in a file as YAML with the same keys.
type Spec struct {
	Models   int                `json:"models"`   // number of models; m1 is the most popular
	Requests int                `json:"requests"` // approximate total
	Hours    Number             `json:"hours"`    // length
	Zipf     Number             `json:"zipf"`     // the n-th model's share is proportional to 1/n^zipf
	Burst    Number             `json:"burst"`    // half of a model's requests come in bursts, this many times as dense as the rest; 1: none
	BurstFor functions.Duration `json:"burstFor"` // mean length of a burst
	Diurnal  Number             `json:"diurnal"`  // 0 to 1: amplitude of the daily rate about its mean; the peak is at 14 h
	Teams    int                `json:"teams"`    // number of teams among which the models are divided
	Input    int                `json:"input"`    // median tokens of a prompt
	Output   int                `json:"output"`   // median tokens of an answer
	Seed     int                `json:"seed"`     // 0: the run's seed
}

// Number is a float in a trace file.
type Number float64

// UnmarshalText parses a finite number.
func (n *Number) UnmarshalText(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("%q is no number", functions.Clip(string(b)))
	}
	*n = Number(f)
	return nil
}

// DefaultSpec is a day of a hundred models.
var DefaultSpec = Spec{
	Models: 100, Requests: 100_000, Hours: 24, Zipf: 1.1, Burst: 1, BurstFor: functions.Duration(time.Minute),
	Teams: 1, Input: 500, Output: 150,
}

func specKeys() (keys []string) {
	for f := range reflect.TypeFor[Spec]().Fields() {
		keys = append(keys, f.Tag.Get("json"))
	}
	return keys
}

// ParseSpec parses models=100,requests=100000,…; missing keys are DefaultSpec's.
func ParseSpec(text string) (Spec, error) {
	s := DefaultSpec
	var yaml strings.Builder
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if !ok || value == "" || strings.Trim(key+value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-") != "" {
			return s, fmt.Errorf("%s: %q where KEY=NUMBER is wanted; keys are %s", Gen, functions.Clip(part), strings.Join(specKeys(), ", "))
		}
		fmt.Fprintf(&yaml, "%s: %s\n", key, value)
	}
	err := catalog.DecodeInto("", []byte(yaml.String()), &s)
	if err == nil {
		err = s.check(func(string) (int, int) { return 0, 0 }, "")
	}
	if p, ok := errors.AsType[catalog.Problems](err); ok {
		for i := range p {
			p[i].Line, p[i].Column, p[i].Path = 0, 0, Gen+": "+p[i].Path
		}
	}
	return s, err
}

func openSpec(s *source, o Options) (*Trace, error) {
	f, closer, err := s.reader()
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	b, err := io.ReadAll(io.LimitReader(f, catalog.MaxFile+1))
	if err != nil {
		return nil, err
	}
	spec := DefaultSpec
	places, err := catalog.DecodePlaced(s.file, b, &spec)
	if err == nil {
		err = spec.check(places, s.file)
	}
	if err != nil {
		return nil, err
	}
	return generated(spec, o.Seed), nil
}

func (s *Spec) check(places catalog.Places, file string) error {
	var out catalog.Problems
	bound := func(path string, v, minimum, maximum float64) {
		if !(v >= minimum && v <= maximum) {
			line, column := places(path)
			out = append(out, catalog.Problem{File: file, Line: line, Column: column, Path: path,
				Message: fmt.Sprintf("%v is not within %s to %s", v, short(minimum), short(maximum))})
		}
	}
	bound("models", float64(s.Models), 1, 1e6)
	bound("requests", float64(s.Requests), 1, 1e10)
	bound("hours", float64(s.Hours), 0.001, 24*366)
	bound("zipf", float64(s.Zipf), 0, 10)
	bound("burst", float64(s.Burst), 1, 1e4)
	bound("burstFor", s.BurstFor.Std().Seconds(), 0.001, 86400)
	bound("diurnal", float64(s.Diurnal), 0, 1)
	bound("teams", float64(s.Teams), 1, 10000)
	bound("input", float64(s.Input), 0, maxTokens)
	bound("output", float64(s.Output), 0, maxTokens)
	if len(out) > 0 {
		return out
	}
	return nil
}

func short(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func generated(s Spec, seed uint64) *Trace {
	if s.Seed != 0 {
		seed = uint64(s.Seed)
	}
	t := &Trace{Format: Gen, Requests: int64(s.Requests), Span: time.Duration(float64(s.Hours) * float64(time.Hour))}
	share := s.shares()
	width := len(strconv.Itoa(s.Models))
	for i := range s.Models {
		team := functions.DefaultTeam
		if s.Teams > 1 {
			team = "team-" + strconv.Itoa(i%s.Teams+1)
		}
		t.Uses = append(t.Uses, Use{
			Name:     functions.Name{Team: team, Name: fmt.Sprintf("m%0*d", width, i+1)},
			Requests: int64(math.Round(share[i] * float64(s.Requests))),
		})
	}
	uses := t.Uses
	t.read = func(yield func(Request, error) bool) { s.generate(uses, share, t.Span, seed, yield) }
	return t
}

// shares returns each model's fraction of all requests.
func (s *Spec) shares() []float64 {
	out := make([]float64, s.Models)
	sum := 0.0
	for i := range out {
		out[i] = math.Pow(float64(i+1), -float64(s.Zipf))
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

const peakHour = 14

// burstyRate is one model's state: a Poisson process whose rate switches between
// quiet and burst (a Markov-modulated one), thinned by the hour of the day.
type burstyRate struct {
	quiet, burst float64 // requests a nanosecond
	until        int64   // of the present phase
	bursting     bool
	model        int32
}

// generate merges the models' processes in time order. Its memory is a few words per
// model, none per request.
func (s *Spec) generate(uses []Use, share []float64, span time.Duration, seed uint64, yield func(Request, error) bool) {
	draw := rand.New(rand.NewPCG(seed, 0x7468_6177))
	end := int64(span)
	diurnal := float64(s.Diurnal)
	// Normalise to a mean of 1 over the span, which need not be whole days.
	mid := 1.0
	if days := span.Hours() / 24; diurnal > 0 {
		turn := func(hour float64) float64 { return math.Sin((hour - peakHour) * 2 * math.Pi / 24) }
		mid = 1 + diurnal*(turn(span.Hours())-turn(0))/(2*math.Pi*days)
	}
	// The quiet rate is q, the burst rate b*q. Bursts take 1/(1+b) of the time, so that
	// half of the requests come in bursts and the mean is 2qb/(1+b).
	b := float64(s.Burst)
	inBurst := float64(s.BurstFor)
	inQuiet := inBurst * b
	next := func(l *burstyRate, at int64) int64 {
		for {
			rate := l.quiet
			if l.bursting {
				rate = l.burst
			}
			wait := draw.ExpFloat64() / rate
			if b > 1 && (wait > float64(math.MaxInt64/4) || at+int64(wait) >= l.until) {
				if at = l.until; at >= end {
					return end
				}
				l.bursting = !l.bursting
				duration := inQuiet
				if l.bursting {
					duration = inBurst
				}
				l.until = at + 1 + int64(min(draw.ExpFloat64()*duration, float64(end)))
				continue
			}
			if wait > float64(end-at) {
				return end
			}
			at += int64(wait)
			if diurnal == 0 {
				return at
			}
			hour := float64(at)/float64(time.Hour) - peakHour
			if draw.Float64()*(1+diurnal) < 1+diurnal*math.Cos(hour*2*math.Pi/24) {
				return at
			}
		}
	}
	h := make(queue[burstyRate], 0, len(uses))
	for i := range uses {
		mean := share[i] * float64(s.Requests) / float64(span) * (1 + diurnal) / mid
		l := burstyRate{quiet: mean, burst: mean, model: int32(i)}
		if b > 1 {
			l.quiet = mean * (1 + b) / (2 * b)
			l.burst = l.quiet * b
			l.bursting = draw.Float64()*(1+b) < 1
			duration := inQuiet
			if l.bursting {
				duration = inBurst
			}
			l.until = int64(min(draw.ExpFloat64()*duration, float64(end)))
		}
		if at := next(&l, 0); at < end {
			heap.Push(&h, item[burstyRate]{at, int32(i), l})
		}
	}
	for len(h) > 0 {
		it := &h[0]
		r := Request{At: time.Duration(it.at), Function: uses[it.v.model].Name, Input: scatter(draw, s.Input), Output: scatter(draw, s.Output)}
		if !yield(r, nil) {
			return
		}
		if it.at = next(&it.v, it.at); it.at >= end {
			heap.Pop(&h)
		} else {
			heap.Fix(&h, 0)
		}
	}
}

// scatter draws a lognormal number of tokens about a median.
func scatter(draw *rand.Rand, median int) int {
	if median <= 0 {
		return 0
	}
	return int(min(max(1, float64(median)*math.Exp(draw.NormFloat64())), 20*float64(median)))
}
