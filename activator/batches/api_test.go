package batches

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

var asOther = httpserver.Field{Name: "Authorization", Value: "Bearer k2/other"}

// Uploads: what is refused leaves nothing behind, and what is taken is there as it came.
func TestUploads(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newWorld(t).open(dir, Options{})
		defer r.end()
		r.maxFile = 1 << 20
		for _, c := range []struct {
			name  string
			parts []string
			code  string
			param string
		}{
			{"no file", []string{"purpose", "batch"}, "invalid_value", "file"},
			{"no purpose", []string{"file", "{}"}, "invalid_value", "purpose"},
			{"another purpose", []string{"purpose", "fine-tune", "file", "{}"}, "invalid_value", "purpose"},
			{"empty", []string{"purpose", "batch", "file", ""}, "invalid_value", "file"},
			{"blank", []string{"purpose", "batch", "file", " \n\r\n\t\n"}, "invalid_value", "file"},
			{"two files", []string{"purpose", "batch", "file", "{}", "file", "{}"}, "invalid_request", "file"},
			{"an unknown part", []string{"purpose", "batch", "colour", "red", "file", "{}"}, "unsupported_parameter", "colour"},
			{"a long part", []string{"purpose", strings.Repeat("batch", 100), "file", "{}"}, "invalid_value", "purpose"},
			{"another anchor", []string{"purpose", "batch", "expires_after[anchor]", "now", "file", "{}"}, "invalid_value", "expires_after[anchor]"},
			{"too short a time", []string{"purpose", "batch", "expires_after[seconds]", "3599", "file", "{}"}, "invalid_value", "expires_after[seconds]"},
			{"50,001 lines", []string{"purpose", "batch", "file", strings.Repeat("{}\n", 50_001)}, "request_too_large", "file"},
			{"50,001 lines, the last without an end", []string{"purpose", "batch", "file", strings.Repeat("{}\n", 50_000) + "{"}, "request_too_large", "file"},
			{"a byte too many", []string{"purpose", "batch", "file", strings.Repeat("x", 1<<20+1)}, "request_too_large", "file"},
			{"many parts", append([]string{"purpose", "batch"}, strings.Split(strings.Repeat("purpose batch ", 16)+"file {}", " ")...), "invalid_request", ""},
		} {
			body, kind := form(c.parts...)
			a := r.do("POST", "/v1/files", body, kind)
			var e struct{ Error struct{ Code, Param string } }
			if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status < 400 || a.status >= 500 || e.Error.Code != c.code ||
				e.Error.Param != c.param {
				t.Errorf("%s: %d %s", c.name, a.status, a.body)
			}
		}
		body, kind := form("purpose", "batch", "file", "{}")
		for name, c := range map[string]struct {
			body string
			kind httpserver.Field
		}{
			"no form":            {"{}", httpserver.Field{Name: "Content-Type", Value: "application/json"}},
			"no boundary":        {body, httpserver.Field{Name: "Content-Type", Value: "multipart/form-data"}},
			"cut in the middle":  {body[:len(body)-20], kind},
			"another's boundary": {strings.ReplaceAll(body, "--", "=="), kind},
		} {
			if a := r.do("POST", "/v1/files", c.body, c.kind); a.status != 400 || a.code() != "invalid_request" {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
		for _, folder := range []string{"uploads", "files"} {
			if left, err := os.ReadDir(filepath.Join(dir, "batches", folder)); err != nil || len(left) > 0 {
				t.Errorf("%s has %v %v", folder, left, err)
			}
		}
		if n := r.uploads.Load(); n != 0 {
			t.Errorf("%d uploads are counted", n)
		}

		content := strings.Repeat("{}\n", 49_999) + "\n{}"
		body, kind = form("file", content, "expires_after[seconds]", "3600", "purpose", "batch", "expires_after[anchor]", "created_at")
		a := r.do("POST", "/v1/files", body, kind)
		now := time.Now().Unix()
		id := r.id(a)
		if want := fmt.Sprintf(`{"id":%q,"object":"file","bytes":%d,"created_at":%d,"expires_at":%d,"filename":"in.jsonl","purpose":"batch","status":"processed","status_details":null}`, id, len(content), now, now+3600); a.body != want {
			t.Errorf("%s\nwant %s", a.body, want)
		}
		if got := r.do("GET", "/v1/files/"+id+"/content", ""); got.body != content {
			t.Errorf("%d bytes came back of %d", len(got.body), len(content))
		}
		<-time.After(time.Hour + 2*time.Minute)
		if a := r.do("GET", "/v1/files/"+id, ""); a.status != 404 {
			t.Errorf("after its time: %d %s", a.status, a.body)
		}
	})
}

// A body that breaks on its way leaves nothing behind, and is not called the client's fault.
func TestUploadBreaks(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(withDefaults(Options{Data: dir, Caller: caller}))
	if err != nil {
		t.Fatal(err)
	}
	body, kind := form("purpose", "batch", "file", strings.Repeat("{}\n", 1000))
	req := httpserver.NewRequest(nil, "POST", "/v1/files", []httpserver.Field{kind}, nil, &httpserver.Context{}, nil)
	u, limit := s.Receive(req)
	broken := io.MultiReader(strings.NewReader(body[:1000]), brokenReader{})
	if err := u.Receive(broken); err == nil || limit < MaxFile {
		t.Error("a body that broke was received")
	}
	u.Close()
	if left, err := os.ReadDir(filepath.Join(dir, "batches", "uploads")); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// What is wrong with a request for a batch is said at once; no key sees another team's.
func TestBadRequests(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		w.there = "m0"
		r := w.open(dir, Options{})
		defer r.end()
		file := r.upload(lines(2, "m0"))
		ended := r.create(lines(2, "m0"), "24h")
		output := r.wait(ended).OutputFileID
		body := func(file, endpoint, window, more string) string {
			return fmt.Sprintf(`{"input_file_id":%q,"endpoint":%q,"completion_window":%q%s}`, file, endpoint, window, more)
		}
		chat := "/v1/chat/completions"
		many := make([]string, 17)
		for i := range many {
			many[i] = fmt.Sprintf(`"k%d":"v"`, i)
		}
		for _, c := range []struct {
			name, method, target, body string
			as                         []httpserver.Field
			status                     int
			code                       string
		}{
			{"unknown file id", "POST", "/v1/batches", body("file-no", chat, "24h", ""), nil, 404, "not_found"},
			{"another team's file", "POST", "/v1/batches", body(file, chat, "24h", ""), []httpserver.Field{asOther}, 404, "not_found"},
			{"an output as input", "POST", "/v1/batches", body(*output, chat, "24h", ""), nil, 400, "invalid_value"},
			{"no file", "POST", "/v1/batches", body("", chat, "24h", ""), nil, 400, "invalid_value"},
			{"another endpoint", "POST", "/v1/batches", body(file, "/v1/audio/speech", "24h", ""), nil, 400, "invalid_value"},
			{"a window of words", "POST", "/v1/batches", body(file, chat, "tomorrow", ""), nil, 400, "invalid_value"},
			{"no window", "POST", "/v1/batches", body(file, chat, "", ""), nil, 400, "invalid_value"},
			{"a short window", "POST", "/v1/batches", body(file, chat, "59s", ""), nil, 400, "invalid_value"},
			{"a long window", "POST", "/v1/batches", body(file, chat, "169h", ""), nil, 400, "invalid_value"},
			{"metadata of numbers", "POST", "/v1/batches", body(file, chat, "24h", `,"metadata":{"a":1}`), nil, 400, "invalid_value"},
			{"much metadata", "POST", "/v1/batches", body(file, chat, "24h", `,"metadata":{`+strings.Join(many, ",")+`}`), nil, 400, "invalid_value"},
			{"an output kept for a minute", "POST", "/v1/batches", body(file, chat, "24h", `,"output_expires_after":{"anchor":"created_at","seconds":60}`), nil, 400, "invalid_value"},
			{"an unknown member", "POST", "/v1/batches", body(file, chat, "24h", `,"colour":"red"`), nil, 400, "invalid_value"},
			{"no JSON", "POST", "/v1/batches", "{", nil, 400, "invalid_json"},
			{"an unknown class of data", "POST", "/v1/batches", body(file, chat, "24h", ""), []httpserver.Field{{Name: "thaw-data", Value: "Secret"}}, 400, "invalid_value"},
			{"cancel of a batch that has ended", "POST", "/v1/batches/" + ended + "/cancel", "", nil, 409, "conflict"},
			{"cancel of another team's", "POST", "/v1/batches/" + ended + "/cancel", "", []httpserver.Field{asOther}, 404, "not_found"},
			{"an unknown batch", "GET", "/v1/batches/batch_no", "", nil, 404, "not_found"},
			{"another team's batch", "GET", "/v1/batches/" + ended, "", []httpserver.Field{asOther}, 404, "not_found"},
			{"another team's file", "GET", "/v1/files/" + file, "", []httpserver.Field{asOther}, 404, "not_found"},
			{"another team's content", "GET", "/v1/files/" + file + "/content", "", []httpserver.Field{asOther}, 404, "not_found"},
			{"another team's output", "GET", "/v1/files/" + *output + "/content", "", []httpserver.Field{asOther}, 404, "not_found"},
			{"delete of another team's", "DELETE", "/v1/files/" + file, "", []httpserver.Field{asOther}, 404, "not_found"},
			{"a path as an id", "GET", "/v1/files/../" + file, "", nil, 404, "unknown_endpoint"},
			{"an escaped path as an id", "GET", "/v1/files/%2e%2e%2f" + file, "", nil, 404, "not_found"},
			{"no key", "GET", "/v1/files", "", []httpserver.Field{{Name: "Authorization", Value: "Bearer x"}}, 401, "invalid_api_key"},
			{"another method", "PUT", "/v1/files", "", nil, 405, "method_not_allowed"},
			{"another path", "GET", "/v1/files/" + file + "/colour", "", nil, 404, "unknown_endpoint"},
			{"a slash", "GET", "/v1/batches/", "", nil, 404, "unknown_endpoint"},
			{"a limit of words", "GET", "/v1/batches?limit=all", "", nil, 400, "invalid_value"},
			{"a limit beyond", "GET", "/v1/batches?limit=101", "", nil, 400, "invalid_value"},
			{"an unknown query", "GET", "/v1/batches?colour=red", "", nil, 400, "invalid_value"},
			{"after nothing", "GET", "/v1/files?after=file-no", "", nil, 400, "invalid_value"},
		} {
			if a := r.do(c.method, c.target, c.body, c.as...); a.status != c.status || a.code() != c.code || a.header("x-request-id") == "" {
				t.Errorf("%s: %d %s", c.name, a.status, a.body)
			}
		}
		if a := r.do("GET", "/v1/files", "", asOther); !strings.Contains(a.body, `"data":[]`) {
			t.Errorf("another team sees %s", a.body)
		}
	})
}

// Lists are read in pages.
func TestPages(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newWorld(t).open(dir, Options{})
		defer r.end()
		var made []string
		for range 5 {
			made = append([]string{r.upload("{}")}, made...)
		}
		read := func(query string) (ids []string, more bool) {
			var p struct {
				Data    []struct{ ID string }
				FirstID *string `json:"first_id"`
				LastID  *string `json:"last_id"`
				HasMore bool    `json:"has_more"`
			}
			a := r.do("GET", "/v1/files"+query, "")
			if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			for _, f := range p.Data {
				ids = append(ids, f.ID)
			}
			if len(ids) > 0 && (*p.FirstID != ids[0] || *p.LastID != ids[len(ids)-1]) {
				t.Errorf("%s", a.body)
			}
			return ids, p.HasMore
		}
		check := func(query string, more bool, want ...string) {
			t.Helper()
			if ids, has := read(query); fmt.Sprint(ids) != fmt.Sprint(want) || has != more {
				t.Errorf("%s: %v %v, want %v", query, ids, has, want)
			}
		}
		check("", false, made...)
		check("?limit=2", true, made[0], made[1])
		check("?limit=2&after="+made[1], true, made[2], made[3])
		check("?limit=2&after="+made[3], false, made[4])
		check("?order=asc&limit=1", true, made[4])
		check("?purpose=batch_output", false)
	})
}

// A line that is no JSON is told with the reason and with what a line is.
func TestReasonOfBadLine(t *testing.T) {
	for in, want := range map[string]string{
		"{\"custom_id\":\"\xe9\"}\n":                 "invalid UTF-8",
		"{\n \"custom_id\": \"a\"\n}\n":              "unexpected EOF",
		strings.Replace(line("a", "m0"), ":", "", 1): "invalid character",
	} {
		x, err := readInput(strings.NewReader(in), "/v1/chat/completions", 4096, nil, func(string) *openai.Error { return nil })
		if err != nil || len(x.faults) == 0 || !strings.Contains(x.faults[0].Message, want) ||
			!strings.Contains(x.faults[0].Message, "Each line is one whole object in UTF-8") {
			t.Errorf("%q: %+v, %v", in, x.faults, err)
		}
	}
}

// The faults of an input are told by line, up to a bound.
func TestBadLines(t *testing.T) {
	good := line("a", "m0")
	for name, c := range map[string]struct {
		in   string
		want string
	}{
		"no JSON":           {good + "nope\n", `2 invalid_json_line`},
		"an array":          {"[]\n", `1 invalid_json_line`},
		"two values":        {strings.TrimSpace(good) + "{}\n", `1 invalid_json_line`},
		"a member twice":    {strings.Replace(good, `{"custom_id"`, `{"custom_id":"b","custom_id"`, 1), `1 invalid_json_line`},
		"an unknown member": {strings.Replace(good, `{"custom_id"`, `{"colour":"red","custom_id"`, 1), `1 invalid_json_line`},
		"the same id":       {good + "\n" + good, `3 duplicate_custom_id custom_id`},
		"no id":             {strings.Replace(good, `"custom_id":"a"`, `"custom_id":""`, 1), `1 missing_required_parameter custom_id`},
		"a long id":         {line(strings.Repeat("x", 513), "m0"), `1 invalid_value custom_id`},
		"another method":    {strings.Replace(good, "POST", "GET", 1), `1 invalid_method method`},
		"another url":       {strings.Replace(good, "/v1/chat/completions", "/v1/embeddings", 1), `1 invalid_url url`},
		"no body":           {`{"custom_id":"a","method":"POST","url":"/v1/chat/completions"}`, `1 missing_required_parameter body`},
		"no model":          {strings.Replace(good, `"model"`, `"mode"`, 1), `1 missing_required_parameter body.model`},
		"a bound":           {strings.Replace(good, `"model"`, `"n":1000000,"model"`, 1), `1 invalid_value body.n`},
		"a stream":          {strings.Replace(good, `"model"`, `"stream":true,"model"`, 1), `1 unsupported_parameter body.stream`},
		"an unknown model":  {good + line("b", "none") + line("c", "none"), `2 model_not_found body.model, 3 model_not_found body.model`},
		"a long line":       {good + line("b", strings.Repeat("m", 5000)), `2 line_too_large`},
		"nothing":           {"\n\n", `0 empty_file`},
		"a BOM and CR LF":   {"\ufeff" + strings.ReplaceAll(good, "\n", "\r\n") + line("b", "m0"), ``},
	} {
		x, err := readInput(strings.NewReader(c.in), "/v1/chat/completions", 4096, nil, func(model string) *openai.Error {
			if model != "m0" {
				return openai.New(openai.ModelNotFound, "")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range x.faults {
			s := "0 " + f.Code
			if f.Line != nil {
				s = fmt.Sprint(*f.Line, " ", f.Code)
			}
			if f.Param != nil {
				s += " " + *f.Param
			}
			if got = append(got, s); f.Message == "" {
				t.Errorf("%s: no words", name)
			}
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
		for model, places := range x.models {
			for _, p := range places {
				if l, err := p.read(strings.NewReader(c.in)); err != nil || !strings.Contains(string(l.Body), model) {
					t.Errorf("%s: %+v is read as %+v: %v", name, p, l, err)
				}
			}
		}
	}
	var utf16 strings.Builder // as shells of Windows write it
	for _, c := range "\ufeff" + good {
		utf16.Write([]byte{byte(c), byte(c >> 8)})
	}
	x, _ := readInput(strings.NewReader(utf16.String()), "/v1/chat/completions", 4096, nil, nil)
	if len(x.faults) == 0 || !strings.Contains(x.faults[0].Message, "UTF-8") {
		t.Errorf("UTF-16: %+v", x.faults)
	}
	if x, _ := readInput(strings.NewReader(strings.Repeat("nope\n", 1000)), "", 100, nil, nil); len(x.faults) != maxFaults {
		t.Errorf("%d faults are told", len(x.faults))
	}
}

// A batch whose input is wrong fails with its faults, and runs nothing.
func TestBatchFails(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		r := w.open(dir, Options{})
		defer r.end()
		b := r.wait(r.create(lines(3, "m0", "none"), "24h"))
		if b.Status != store.Failed || b.FailedAt == nil || b.OutputFileID != nil || b.ErrorFileID != nil || len(b.Errors.Data) != 1 ||
			*b.Errors.Data[0].Line != 2 || b.Errors.Object != "list" {
			t.Errorf("%+v", b)
		}
		if len(w.asked) > 0 {
			t.Errorf("%v was run", w.asked)
		}
		// Its input may be deleted, and that of a batch that runs may not.
		if a := r.do("DELETE", "/v1/files/"+b.InputFileID, ""); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		id := r.create(lines(3, "m0"), "24h")
		if a := r.do("DELETE", "/v1/files/"+r.batch(id).InputFileID, ""); a.status != 409 {
			t.Errorf("%d %s", a.status, a.body)
		}
		r.wait(id)
	})
}

// FuzzReadInput: whatever a file has, each of its lines is read as it was checked, or is told.
func FuzzReadInput(f *testing.F) {
	f.Add([]byte(line("a", "m") + "\n" + line("b", "m")))
	f.Add([]byte("\ufeff" + line("a", "m") + "{}\r\n[1\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		x, err := readInput(bytes.NewReader(in), "/v1/chat/completions", 256, map[string]bool{"b": true}, func(string) *openai.Error { return nil })
		if err != nil || x.left > x.total || len(x.faults) > maxFaults || x.total == 0 && len(x.faults) == 0 {
			t.Fatalf("%+v %v", x, err)
		}
		n := 0
		for _, places := range x.models {
			for _, p := range places {
				n++
				if l, err := p.read(bytes.NewReader(in)); err != nil || l.CustomID == "" || l.CustomID == "b" {
					t.Errorf("%+v: %+v %v", p, l, err)
				}
			}
		}
		if n != x.left {
			t.Errorf("%d places, %d lines", n, x.left)
		}
	})
}

// FuzzUpload: a form is taken whole or refused, however it is cut.
func FuzzUpload(f *testing.F) {
	s, err := Open(withDefaults(Options{Data: f.TempDir(), Caller: caller}))
	if err != nil {
		f.Fatal(err)
	}
	body, kind := form("purpose", "batch", "file", "{}\n{}\n", "expires_after[seconds]", "3600")
	f.Add([]byte(body), kind.Value)
	f.Add([]byte(body[:100]), kind.Value)
	f.Fuzz(func(t *testing.T, body []byte, kind string) {
		u, _ := s.Receive(httpserver.NewRequest(nil, "POST", "/v1/files", []httpserver.Field{{Name: "Content-Type", Value: kind}}, nil, &httpserver.Context{}, nil))
		err := u.Receive(iotest.OneByteReader(bytes.NewReader(body)))
		if _, ok := err.(*openai.Error); err != nil && !ok {
			t.Errorf("%v", err)
		}
		if x := u.(*upload); err == nil && (x.lines == 0 || x.purpose != "batch" || x.keep < leastKeep) {
			t.Errorf("%+v", x)
		}
		u.Close()
	})
}

// TestMismatch: what is wrong with the form of a body or a line is said in words of JSON.
func TestMismatch(t *testing.T) {
	for body, want := range map[string][2]string{
		`{"input_file_id": 5}`:                      {"`input_file_id` is a number, not a string", "input_file_id"},
		`{"metadata": []}`:                          {"`metadata` is a list, not an object", "metadata"},
		`{"metadata": {"a": 1}}`:                    {"`metadata/a` is a number, not a string", "metadata/a"},
		`{"output_expires_after": {"seconds": ""}}`: {"`output_expires_after/seconds` is a string, not a whole number", "output_expires_after/seconds"},
		`{"colour": "red"}`:                         {"`colour` is no member of it", "colour"},
		`[]`:                                        {"it is a list, not an object", ""},
		`true`:                                      {"it is true, not an object", ""},
	} {
		_, _, e := readCreation([]byte(body))
		if e == nil || e.Message != "The body is not one of a batch: "+want[0]+"." || e.Param != want[1] {
			t.Errorf("%s: %+v", body, e)
		}
	}
	for line, want := range map[string]string{
		`[]`:                  "it is a list, not an object",
		`{"custom_id": 5}`:    "`custom_id` is a number, not a string",
		`{"colour": "red"}`:   "`colour` is no member of it",
		`{"url": {"a": "b"}}`: "`url` is an object, not a string",
	} {
		_, _, problem := parseLine([]byte(line), "/v1/chat/completions")
		if problem == nil || !strings.HasPrefix(problem.Message, "The line is not a request: "+want+". Want") {
			t.Errorf("%s: %+v", line, problem)
		}
	}
}
