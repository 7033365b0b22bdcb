package trace

import (
	"strings"
	"testing"
	"time"
)

// fuzzFormat opens text as a format and, if that succeeds, reads it to the end: in order, with
// the counted number of requests and no error.
func fuzzFormat(f *testing.F, format string, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := open("f", fromText(text), Options{Format: format, PerMinute: 100})
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x1b\x07\r") {
				t.Errorf("%q", err)
			}
			return
		}
		last, n := time.Duration(0), int64(0)
		for r, err := range tr.Read() {
			if err != nil {
				t.Fatalf("%q opened, and then: %v", text, err)
			}
			if r.At < last || r.At > tr.Span || r.Input < 0 || r.Output < 0 || r.ClientTimeout < 0 {
				t.Fatalf("%q: %+v after %v of %v", text, r, last, tr.Span)
			}
			last = r.At
			if n++; n > 100_000 {
				return
			}
		}
		if format != Gen && n != tr.Requests {
			t.Errorf("%q: %d of %d", text, n, tr.Requests)
		}
	})
}

func FuzzThaw(f *testing.F) { fuzzFormat(f, Thaw, textLog, jsonLog) }

func FuzzMooncake(f *testing.F) { fuzzFormat(f, Mooncake, mooncake) }

func FuzzAzureLLM(f *testing.F) { fuzzFormat(f, AzureLLM, llm) }

func FuzzAzureFunctions(f *testing.F) { fuzzFormat(f, AzureFunctions, functionsCSV, publicCSV) }

func FuzzSpec(f *testing.F) {
	f.Add("models=10,requests=100,burst=3,diurnal=0.5")
	f.Add("zipf=1e3")
	f.Add("hours=0.001,models=2,burstFor=1ms,burst=10000")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSpec(text)
		if err != nil || s.Models > 1000 || s.Requests > 100_000 {
			return
		}
		tr := generated(s, 1)
		last, n := time.Duration(0), 0
		for r := range tr.Read() {
			if r.At < last || r.At > tr.Span {
				t.Fatalf("%q: %v after %v of %v", text, r.At, last, tr.Span)
			}
			last = r.At
			if n++; n > 10_000 {
				return
			}
		}
	})
}
