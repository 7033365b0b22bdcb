package batches

import (
	"bufio"
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/jsonerror"
	"github.com/thaw-dev/thaw/functions/openai"
)

type inputLine struct {
	CustomID string         `json:"custom_id"`
	Method   string         `json:"method"`
	URL      string         `json:"url"`
	Body     jsontext.Value `json:"body"`
}

// place is where a line is in its input; number counts from 1.
type place struct {
	at     int64
	size   int32
	number int32
	tries  int32        // that failed
	cost   *spend.Entry // of the tries; nil: there was none
}

// eachLine yields the lines of an input that are not blank, and where they are. Its error is
// that of in, or bufio.ErrTooLong behind the last place for a line beyond the bound.
func eachLine(in io.Reader, most int64, yield func(p place, line []byte) bool) (end place, err error) {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, int(most)+2)
	at, size := int64(0), 0
	sc.Split(func(data []byte, atEOF bool) (_ int, line []byte, err error) {
		size, line, err = bufio.ScanLines(data, atEOF)
		return size, line, err
	})
	number := int32(0)
	for sc.Scan() {
		line := sc.Bytes()
		number++
		p := place{at: at, size: int32(size), number: number}
		at += int64(size)
		if number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && !yield(p, line) {
			return p, nil
		}
	}
	return place{at: at, number: number + 1}, sc.Err()
}

func (p place) read(in io.ReaderAt) (l inputLine, err error) {
	b := make([]byte, p.size)
	if _, err = in.ReadAt(b, p.at); err != nil && !errors.Is(err, io.EOF) {
		return l, err
	}
	return l, json.Unmarshal(bytes.TrimPrefix(b, []byte("\ufeff")), &l)
}

// lineError is a fault of a line; param is what of it is wrong, "" the whole line.
func lineError(code, param, message string) *store.LineError {
	e := &store.LineError{Code: code, Message: message}
	if param != "" {
		e.Param = &param
	}
	return e
}

// maxCustomID bounds a custom_id in bytes.
const maxCustomID = 512

// parseLine reads a line strictly. model is the one that its body names.
func parseLine(line []byte, endpoint string) (l inputLine, model string, problem *store.LineError) {
	fault := func(code, param, text string) (inputLine, string, *store.LineError) {
		return l, "", lineError(code, param, text)
	}
	if err := json.Unmarshal(line, &l, json.RejectUnknownMembers(true)); err != nil {
		if s, ok := errors.AsType[*json.SemanticError](err); ok {
			return fault("invalid_json_line", "",
				"The line is not a request: "+jsonerror.Describe(s)+". Want {\"custom_id\", \"method\", \"url\", \"body\"}.")
		}
		if bytes.IndexByte(line, 0) >= 0 {
			return fault("invalid_json_line", "", "The line is not valid JSON: it has zero bytes, as text in UTF-16 has. Save the file as UTF-8.")
		}
		return fault("invalid_json_line", "", "The line is not valid JSON: "+functions.Clip(strings.TrimPrefix(err.Error(), "jsontext: "))+
			". Each line is one whole object in UTF-8.")
	}
	switch {
	case l.CustomID == "":
		return fault("missing_required_parameter", "custom_id", "The line has no custom_id.")
	case len(l.CustomID) > maxCustomID:
		return fault("invalid_value", "custom_id", fmt.Sprintf("The custom_id is longer than %d bytes.", maxCustomID))
	case l.Method != "POST":
		return fault("invalid_method", "method", "method is `"+functions.Clip(l.Method)+"`; want POST.")
	case l.URL != endpoint:
		return fault("invalid_url", "url", "url is `"+functions.Clip(l.URL)+"`; want the batch's endpoint, "+endpoint+".")
	case l.Body == nil:
		return fault("missing_required_parameter", "body", "The line has no body.")
	}
	env, err := openai.Peek(l.Body)
	var e *openai.Error
	switch {
	case errors.As(err, &e):
		return fault(string(e.Code), strings.TrimSuffix("body."+strings.ReplaceAll(strings.TrimPrefix(e.Param, "/"), "/", "."), "."), e.Message)
	case err != nil:
		return fault("invalid_json_line", "body", "The body is not valid.")
	case env.Stream:
		return fault("unsupported_parameter", "body.stream", "A batch has no streams: leave stream out.")
	}
	return l, env.Model, nil
}

// maxFaults is how many faults of an input are told.
const maxFaults = 100

// input is what a batch's input consists of.
type input struct {
	models map[string][]place // the lines without an entry, by the model that they name
	left   int
	total  int
	faults []store.LineError
}

// readInput reads an input. done says which lines have an entry; known returns what is wrong
// with a model's name, nil where nothing is.
func readInput(in io.Reader, endpoint string, most int64, done map[string]bool, known func(model string) *openai.Error) (*input, error) {
	out := &input{models: map[string][]place{}}
	ids, unknown := map[string]int32{}, map[string]*openai.Error{}
	fault := func(p place, e *store.LineError) bool {
		e.Line = new(int(p.number))
		out.faults = append(out.faults, *e)
		return len(out.faults) < maxFaults
	}
	end, err := eachLine(in, most, func(p place, line []byte) bool {
		l, model, problem := parseLine(line, endpoint)
		if problem != nil {
			return fault(p, problem)
		}
		if first := ids[l.CustomID]; first > 0 {
			return fault(p, lineError("duplicate_custom_id", "custom_id",
				fmt.Sprintf("The custom_id `%s` is that of line %d too.", functions.Clip(l.CustomID), first)))
		}
		ids[l.CustomID] = p.number
		e, asked := unknown[model]
		if !asked {
			e = known(model)
			unknown[model] = e
		}
		if e != nil {
			return fault(p, lineError(string(e.Code), "body.model", e.Message))
		}
		if out.total++; !done[l.CustomID] {
			out.left++
			out.models[model] = append(out.models[model], p)
		}
		return true
	})
	if errors.Is(err, bufio.ErrTooLong) {
		fault(end, lineError("line_too_large", "", fmt.Sprintf("The line is larger than %d bytes.", most)))
		err = nil
	}
	if err == nil && out.total == 0 && len(out.faults) == 0 {
		out.faults = []store.LineError{{Code: "empty_file", Message: "The file has no requests."}}
	}
	return out, err
}
