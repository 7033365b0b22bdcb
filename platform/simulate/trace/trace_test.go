package trace

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// fromText is a file in memory.
func fromText(text string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

// traceText formats a trace as text, one request per line.
func traceText(t *testing.T, r Requests) string {
	t.Helper()
	var b strings.Builder
	last := time.Duration(0)
	for r, err := range r {
		if err != nil {
			fmt.Fprintln(&b, err)
			break
		}
		if r.At < last {
			t.Errorf("%v after %v", r.At, last)
		}
		last = r.At
		fmt.Fprintf(&b, "%v %s %s %d %d %v\n", r.At, r.Function, r.Team, r.Input, r.Output, r.ClientTimeout)
	}
	return b.String()
}

const (
	textLog = `time=2026-11-21T10:00:00.000Z level=INFO msg=serving addr=127.0.0.1:8080 functions=2
time=2026-11-21T10:00:05.000Z level=INFO msg=request id=a code=200 route=/v1/chat/completions model=default/tiny team=default stream=true took=1s prompt_tokens=5 completion_tokens=9
time=2026-11-21T10:00:06.000Z level=INFO msg=request id=b code=200 route=/v1/chat/completions model=ml/llama team=ml stream=true waited=4s cold_start=c1 first_token=4.2s took=5s prompt_tokens=50 completion_tokens=90
time=2026-11-21T10:00:07.000Z level=INFO msg=request id=c code=404 route=/v1/chat/completions error="no such model" took=10µs
time=2026-11-21T10:00:08.500Z level=INFO msg=request id=d code=400 route=/v1/chat/completions model=default/tiny team=default stream=false took=1ms
time=2026-11-21T10:00:09.000Z level=WARN msg="node \"n1\" is lost" code=none
time=2026-11-21T10:00:10.000Z level=INFO msg=request id=e code=499 route=/v1/chat/completions model=default/tiny:fun team=ml stream=true waited=2s took=2s
`
	jsonLog = `{"time":"2026-11-21T10:00:05Z","level":"INFO","msg":"request","id":"a","code":200,"model":"default/tiny","team":"default","took":1000000000,"prompt_tokens":5,"completion_tokens":9}
{"time":"2026-11-21T10:00:06Z","level":"INFO","msg":"request","id":"b","code":200,"model":"ml/llama","team":"ml","took":5000000000,"prompt_tokens":50,"completion_tokens":90}
{"time":"2026-11-21T10:00:07Z","level":"WARN","msg":"a node is lost"}
{"time":"2026-11-21T10:00:10Z","level":"INFO","msg":"request","id":"e","code":499,"model":"default/tiny:fun","team":"ml","took":2000000000}
`
	// b ended after a and began before it.
	logTold = `0s ml/llama ml 50 90 0s
3s default/tiny default 5 9 0s
7s default/tiny:fun ml 0 0 2s
`
	mooncake = `{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 10, "output_length": 3, "hash_ids": []}
`
	llm = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\n"
	// The same day twice: in invitro's format and in that of the public data set.
	functionsCSV = "HashFunction,HashApp,HashOwner,minute_1,minute_2,minute_3\n" +
		"abcdef0123456789,b,c,2,0,1\nABCDEF0123456789,b,c,0,3,0\nffff,b,c,0,0,0\n"
	publicCSV = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n" +
		"c,b,abcdef0123456789,http,2,0,1\nc,b,ABCDEF0123456789,http,0,3,0\nc,b,ffff,http,0,0,0\n"
)

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		name, text, format, want string
		requests                 int64
		span                     time.Duration
	}{
		{"text log", textLog, Thaw, logTold, 3, 7 * time.Second},
		{"JSON log", jsonLog, Thaw, logTold, 3, 7 * time.Second},
		{"mooncake", mooncake, Mooncake, "0s /  6758 500 0s\n1.5s /  10 3 0s\n", 2, 1500 * time.Millisecond},
		{"azure llm", llm, AzureLLM, "0s /  374 44 0s\n4.314579s /  396 109 0s\n", 2, 4314579 * time.Microsecond},
		{"azure llm of 2024", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01.5+00:00,1,2\n2024-05-10 00:00:00+00:00,3,4", AzureLLM, "0s /  3 4 0s\n1.5s /  1 2 0s\n", 2, 1500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := open("f", fromText(c.text), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if tr.Format != c.format || tr.Requests != c.requests || tr.Span != c.span {
				t.Errorf("%+v", tr)
			}
			for range 2 { // a trace can be read twice
				if got := traceText(t, tr.Read()); got != c.want {
					t.Errorf("got\n%swant\n%s", got, c.want)
				}
			}
			for range tr.Read() {
				break // the iteration can stop at any time
			}
		})
	}
}

func TestMinutes(t *testing.T) {
	a, err := open("f", fromText(functionsCSV), Options{Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	b, err := open("f", fromText(publicCSV), Options{Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	got := traceText(t, a.Read())
	if got != traceText(t, b.Read()) || got != traceText(t, a.Read()) {
		t.Error("the same calls, other requests")
	}
	if a.Requests != 6 || a.Span != 3*time.Minute || len(a.Uses) != 2 ||
		a.Uses[0] != (Use{functions.Name{Team: "default", Name: "f-abcdef012345"}, 3}) || a.Uses[1].Name.Name != "f-abcdef012345-2" {
		t.Errorf("%+v", a)
	}
	perMinute := map[string]int{}
	for r := range a.Read() {
		perMinute[fmt.Sprint(r.Function.Name, " ", int(r.At/time.Minute))]++
	}
	if len(perMinute) != 3 || perMinute["f-abcdef012345 0"] != 2 || perMinute["f-abcdef012345-2 1"] != 3 ||
		perMinute["f-abcdef012345 2"] != 1 {
		t.Error(perMinute)
	}
	if other, _ := open("f", fromText(functionsCSV), Options{Seed: 8}); traceText(t, other.Read()) == got {
		t.Error("another seed, the same seconds")
	}
	capped, err := open("f", fromText(functionsCSV), Options{PerMinute: 1})
	if err != nil || capped.Requests != 3 || strings.Count(traceText(t, capped.Read()), "\n") != 3 {
		t.Errorf("%+v %v", capped, err)
	}
}

func TestGzip(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	io.WriteString(w, mooncake)
	w.Close()
	tr, err := open("f.gz", fromText(z.String()), Options{})
	if err != nil || tr.Requests != 2 {
		t.Fatal(tr, err)
	}
	if _, err := open("f.gz", fromText(z.String()[:20]), Options{}); err == nil {
		t.Error("half of it was read")
	}
}

// TestForeignLines: what else was written to the file of a log is skipped and counted, first,
// between and last.
func TestForeignLines(t *testing.T) {
	const banner = "thaw serves on http://127.0.0.1:8080\n"
	for name, x := range map[string]struct {
		text    string
		foreign int64
	}{
		"none":               {textLog, 0},
		"the banner":         {banner + textLog, 1},
		"a whole bang":       {"# make\n\nmake: Entering\n\xff\x00\n" + banner + textLog + "panic: runtime error\n\ngoroutine 1 [running]:\n\tmain.go:1\n", 7},
		"JSON":               {banner + jsonLog + "{}\n" + `{"level":"INFO"}` + "\n", 3},
		"in the middle":      {strings.Replace(textLog, "time=2026-11-21T10:00:06", "time flies\ntime=2026-11-21T10:00:06", 1), 1},
		"a log of two forms": {textLog[:strings.Index(textLog, "time=2026-11-21T10:00:05")] + banner + jsonLog, 1},
	} {
		tr, err := open("f", fromText(x.text), Options{})
		if err != nil || tr.Format != Thaw || tr.Foreign != x.foreign || tr.Requests != 3 {
			t.Errorf("%s: %+v %v", name, tr, err)
			continue
		}
		if got := traceText(t, tr.Read()); strings.Count(got, "\n") != 3 {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

func TestBadTraces(t *testing.T) {
	for _, c := range []struct{ format, text, want string }{
		{"", "", "f: its begin is of no format"},
		{"", "hello\n", "f: its begin is of no format thaw knows; --format says which it is: thaw, azure-functions, mooncake, azure-llm, gen"},
		{"mooncak", mooncake, `"mooncak" is no format of a trace; did you mean mooncake?`},
		{"thaw", "", "f: there is no request in it"},
		{"", textLog + `time=2026-11-21T10:00:05Z msg=request code=200 model=Not/OK took=1s`, `f:8: model: "Not/OK" is no function name`},
		{"", textLog + `time=yesterday msg=request code=200 model=default/tiny took=1s`, `f:8: time: "yesterday" is no time`},
		{"", textLog + `time=2026-11-21T10:00:05Z msg=request code=200 model=default/tiny took=long`, `f:8: took: "long" is no duration`},
		{"", textLog + `time=2026-11-21T10:00:05Z msg=request code=200 model=default/tiny took=1s prompt_tokens=-4`, `f:8: prompt_tokens: -4 is no number of tokens`},
		{"", textLog + `time=2026-11-21T10:00:05Z msg=request code=good`, `f:8: code: "good" is no number`},
		{"", textLog + `time=2026-11-21T10:00:05Z msg="request`, `f:8: msg: a quote is not closed`},
		{"", jsonLog + `{"time":"2026-`, `f:5: no JSON object`},
		{"thaw", "panic: runtime error\n{}\n", "f: there is no request in it"},
		{"", "hello\n" + mooncake, "f: its begin is of no format"},
		{"", jsonLog + `{"msg":"request","code":"x"}`, `f:5: code: string where a number is wanted`},
		{"", mooncake + `{"timestamp": 5}`, `f:3: input_length or output_length is missing`},
		{"", mooncake + `{"input_length": 5}`, `f:3: timestamp is missing`},
		{"", mooncake + `{"timestamp":-1,"input_length":5,"output_length":1}`, `f:3: timestamp: -1 is no time`},
		{"", mooncake + `{"timestamp":1,"input_length":-5,"output_length":1}`, `f:3: input_length: -5 is no number`},
		{"", mooncake + "\n\nx\x1b[2J", "f:5: no JSON object"},
		{"", llm + "2023-11-16 18:15:46,374\n", "f:4: 2 columns where TIMESTAMP"},
		{"", llm + "noon,374,44\n", `f:4: TIMESTAMP: "noon" is no time`},
		{"", llm + "2023-11-16 18:15:46,many,44\n", `f:4: ContextTokens: "many" is no number`},
		{"", functionsCSV + "a,b,c,1,2\n", "f:5: wrong number of fields"},
		{"", functionsCSV + "a,b,c,1,2,x\n", `f:5: minute 3: "x" is no number of calls`},
		{"", functionsCSV + "a,b,c,1,2,-3\n", `f:5: minute 3: "-3" is no number of calls`},
		{"", "HashFunction,HashApp\na,b\n", "f:1: no columns of minutes"},
		{"azure-functions", "minute_1\n3\n", "f:1: no column HashFunction"},
		{"azure-functions", "HashFunction,1,minute_1\na,0,0\n", "f:1: two columns are minute 1"},
		{"azure-functions", "HashFunction,1\na,0\n", "f: there is no request in it"},
		{"azure-functions", "", "f:1: the file is empty"},
		{"mooncake", strings.Repeat("x", 2<<20), "f:1: a line of more than 1048576 bytes"},
		{"", "models: 10\nrequest: 5\n", "f:2:1: request: unknown key (did you mean requests?)"},
		{"", "models: 10\nzipf: steep\n", `f:2:7: zipf: "steep" is no number`},
		{"", "models: 10\nhours: 0\n", "f:2:1: hours: 0 is not within 0.001 to 8784"},
	} {
		_, err := open("f", fromText(c.text), Options{Format: c.format})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %q", c.text, err, c.want)
		}
		if err != nil && strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("an error that commands the terminal: %q", err)
		}
	}
	for _, c := range []struct{ spec, want string }{
		{"gen:models", `"models" where KEY=NUMBER is wanted; keys are models, requests`},
		{"gen:model=3", "gen: model: unknown key (did you mean models?)"},
		{"gen:models=0", "gen: models: 0 is not within 1 to 1000000"},
		{"gen:zipf=NaN", `"NaN" is no number`},
		{"gen:models=1\nseed=3", "KEY=NUMBER"},
		{"gen:diurnal=2,burst=0", "gen: burst: 0 is not within 1 to 10000"},
	} {
		if _, err := Open(c.spec, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.spec, err, c.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{}); !os.IsNotExist(err) {
		t.Error(err)
	}
	if _, err := Open("gen:models=3", Options{Format: Thaw}); err == nil {
		t.Error("a generator of another format")
	}
}

// TestTraceFileChanged: a file that changed after it was opened ends the stream with an
// error.
func TestTraceFileChanged(t *testing.T) {
	text := mooncake
	tr, err := open("f", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, Options{})
	if err != nil {
		t.Fatal(err)
	}
	text += "gone\n"
	if got := traceText(t, tr.Read()); !strings.HasSuffix(got, "f:3: no JSON object: invalid character 'g' looking for beginning of value\n") {
		t.Error(got)
	}
}

func TestGenerate(t *testing.T) {
	tr, err := Open("gen:models=200,requests=200000,hours=24,zipf=1,diurnal=0.8,burst=10,teams=3", Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	count := map[functions.Name]int64{}
	hour := [24]int{}
	tokens := 0
	last := time.Duration(0)
	for r, err := range tr.Read() {
		if err != nil || r.At < last || r.At >= 24*time.Hour {
			t.Fatal(r, last, err)
		}
		last = r.At
		n++
		count[r.Function]++
		hour[int(r.At.Hours())]++
		tokens += r.Input
	}
	if math.Abs(float64(n)-200000) > 6000 {
		t.Errorf("%d requests", n)
	}
	for _, i := range []int{0, 1, 9} {
		u := tr.Uses[i]
		if got := float64(count[u.Name]); math.Abs(got-float64(u.Requests)) > 0.25*float64(u.Requests) {
			t.Errorf("%s: %v of %d", u.Name, got, u.Requests)
		}
	}
	if r := float64(hour[14]) / float64(hour[2]); r < 5 || r > 15 { // 1.8 to 0.2
		t.Errorf("day to night is %.1f", r)
	}
	if mean := float64(tokens) / float64(n); mean < 600 || mean > 1000 { // a lognormal's mean is above its median
		t.Errorf("%.0f tokens", mean)
	}
	if tr.Uses[0].Name.String() != "team-1/m001" || tr.Uses[4].Name.String() != "team-2/m005" {
		t.Error(tr.Uses[:5])
	}
}

// burstiness is the variance of requests per minute over their mean: 1 for Poisson.
func burstiness(t *testing.T, spec string) float64 {
	tr, err := Open(spec, Options{Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	bins := make([]float64, int(tr.Span/time.Minute)+1)
	n := 0.0
	for r := range tr.Read() {
		bins[int(r.At/time.Minute)]++
		n++
	}
	mean := n / float64(len(bins))
	sum := 0.0
	for _, b := range bins {
		sum += (b - mean) * (b - mean)
	}
	return sum / float64(len(bins)) / mean
}

func TestBursts(t *testing.T) {
	if b := burstiness(t, "gen:models=1,requests=20000"); b < 0.85 || b > 1.15 {
		t.Errorf("Poisson's is %.2f", b)
	}
	if b := burstiness(t, "gen:models=1,requests=20000,burst=20"); b < 10 {
		t.Errorf("with bursts it is %.2f", b)
	}
}

// TestGeneratorMemory: memory grows with the models, not with the requests.
func TestGeneratorMemory(t *testing.T) {
	tr, err := Open("gen:models=1000,requests=400000", Options{})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	for range tr.Read() {
		n++
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d requests allocated %d bytes", n, grown)
	}
}

func TestMapOntoModels(t *testing.T) {
	models := []functions.Name{{Team: "default", Name: "tiny"}, {Team: "ml", Name: "llama"}}
	log, err := open("f", fromText(textLog), Options{})
	if err != nil {
		t.Fatal(err)
	}
	moon, err := open("f", fromText(mooncake+mooncake), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		trace  *Trace
		models []functions.Name
		how    string
		want   string // the models in request order, or the error
		left   int64
	}{
		{"by name", log, models, MapAuto, "llama tiny tiny", 0},
		{"unknown", log, models[:1], MapAuto, "1 of the 3 functions in the trace are no models here: ml/llama; --map says", 0},
		{"left out", log, models[:1], MapKnown, "tiny tiny", 1},
		{"none known", log, []functions.Name{{Team: "a", Name: "b"}}, MapKnown, "3 of the 3 functions", 0},
		{"by rank", log, models, MapRank, "tiny tiny llama", 0},
		{"no names, one model", moon, models[:1], MapAuto, "tiny tiny tiny tiny", 0},
		{"no names by name", moon, models, MapName, "names no functions", 0},
		{"no such way", moon, models, "rnk", "did you mean rank?", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := c.trace.Onto(c.models, c.how, 1)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Error(err)
				}
				return
			}
			var names []string
			for r, err := range m.Read {
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, r.Function.Name)
			}
			if got := strings.Join(names, " "); got != c.want || m.Left != c.left {
				t.Errorf("got %q, left %d, want %q, %d", got, m.Left, c.want, c.left)
			}
		})
	}
	m, err := moon.Onto(models, MapAuto, 1)
	if err != nil || m.How != MapZipf {
		t.Error(m, err)
	}
}

// TestDataSets reads the public traces if they are present.
func TestDataSets(t *testing.T) {
	dir := os.Getenv("THAW_TRACES")
	if dir == "" {
		t.Skip("THAW_TRACES names no folder of traces")
	}
	for file, want := range map[string]struct {
		format   string
		requests int64
		uses     int
	}{
		"azure-functions-990x1440min.csv": {AzureFunctions, 15359393, 990},
		"mooncake-conversation.jsonl":     {Mooncake, 12031, 0},
	} {
		tr, err := Open(filepath.Join(dir, file), Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		if tr.Format != want.format || tr.Requests != want.requests || len(tr.Uses) != want.uses {
			t.Errorf("%s: %s, %d requests, %d functions", file, tr.Format, tr.Requests, len(tr.Uses))
		}
		var n int64
		last := time.Duration(0)
		for r, err := range tr.Read() {
			if err != nil || r.At < last {
				t.Fatal(err, r, last)
			}
			last = r.At
			if n++; testing.Short() && n > 1e6 {
				n = tr.Requests
				break
			}
		}
		if n != tr.Requests {
			t.Errorf("%s: %d of %d requests came", file, n, tr.Requests)
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	tr, err := Open("gen:models=10000,requests=10000000,diurnal=0.5,burst=8", Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	n := 0
	for n < b.N {
		for range tr.Read() {
			if n++; n >= b.N {
				break
			}
		}
	}
}

// TestPartOfDay: the number of requests is about the requested one, for spans that begin
// and end at any hour.
func TestPartOfDay(t *testing.T) {
	for _, spec := range []string{"gen:models=50,requests=20000,hours=6,diurnal=1", "gen:models=50,requests=20000,hours=13,diurnal=0.5,burst=4,burstFor=10s", "gen:models=5,requests=20000,hours=60,diurnal=1"} {
		tr, err := Open(spec, Options{Seed: 2})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for range tr.Read() {
			n++
		}
		if n < 18500 || n > 21500 {
			t.Errorf("%s: %d requests", spec, n)
		}
	}
}
