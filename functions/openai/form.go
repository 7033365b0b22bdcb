package openai

import (
	"bytes"
	"fmt"
	"mime"
	"strings"
)

// Bounds of a multipart body.
const (
	maxParts    = 64
	maxPartHead = 1 << 10
	maxField    = 256
)

// PeekMultipart finds the model field of a multipart/form-data body (the audio
// endpoints). contentType is the request's own field. It is as strict as [Peek]: no
// boundary and no part's name that could be read in two ways, and one model. Splice leaves
// a preamble and an epilogue out. The error is an *[Error].
func PeekMultipart(contentType string, body []byte) (Envelope, error) {
	return peekForm(contentType, body, false, maxParts)
}

// PeekMultipartUnnamed is [PeekMultipart] where the model is known without the
// body: it may name any, or none.
func PeekMultipartUnnamed(contentType string, body []byte) (Envelope, error) {
	return peekForm(contentType, body, true, maxParts)
}

func peekForm(contentType string, body []byte, unnamed bool, maxParts int) (Envelope, error) {
	fail := func(what string) (Envelope, error) { return Envelope{}, malformedForm(what) }
	media, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err != nil || media != "multipart/form-data" || boundary == "" || len(boundary) > 70 {
		return fail("multipart/form-data with a boundary is expected: leave Content-Type to the library that writes the form.")
	}
	open := []byte("--" + boundary)
	delimiter := []byte("\r\n--" + boundary)
	env := Envelope{N: 1, form: true}
	i := bytes.Index(body, open)
	if i < 0 || i > 0 && !bytes.HasSuffix(body[:i], []byte("\r\n")) {
		return fail("the boundary that Content-Type names does not begin a line of it.")
	}
	env.whole.at = i
	i += len(open)
	seen := map[string]bool{}
	for parts := 0; ; parts++ {
		if bytes.HasPrefix(body[i:], []byte("--")) {
			env.whole.end = i + 2
			if end := skipBlanks(body, i+2); end != len(body) && !bytes.HasPrefix(body[end:], []byte("\r\n")) || bytes.Contains(body[end:], open) {
				return fail("data follows its end.")
			}
			if bytes.HasPrefix(body[i+2:], []byte("\r\n")) {
				env.whole.end += 2
			}
			break
		}
		if parts == maxParts {
			return fail(fmt.Sprintf("it has more than %d parts.", maxParts))
		}
		if i = skipBlanks(body, i); !bytes.HasPrefix(body[i:], []byte("\r\n")) {
			return fail("a boundary is not followed by a line end.")
		}
		i += 2
		n := bytes.Index(body[i:min(len(body), i+maxPartHead+4)], []byte("\r\n\r\n"))
		if n < 0 {
			return fail("a part's head does not end.")
		}
		name, file, ok := partName(string(body[i : i+n]))
		if !ok {
			return fail("a part's head wants one Content-Disposition: form-data with a name, and lines that end with CR LF.")
		}
		at := i + n + 4
		// The delimiter may follow at once where the part is empty.
		n = bytes.Index(body[at-2:], delimiter)
		if n < 0 {
			return fail("its end is missing.")
		}
		end := at - 2 + n
		i = end + len(delimiter)
		value := body[min(at, end):end]
		if !file {
			if seen[name] && !strings.HasSuffix(name, "[]") {
				return Envelope{}, New(InvalidRequest, "The form is ambiguous: a field appears twice.").With(name)
			}
			seen[name] = true
		}
		if err := env.addPart(name, file, value, span{at, end}); err != nil {
			return Envelope{}, err
		}
	}
	if env.model == (span{}) && unnamed {
		env.none, env.part = true, "--"+boundary+"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n"
		return env, nil
	}
	if env.Model == "" && !unnamed {
		return Envelope{}, New(MissingRequiredParameter, "")
	}
	return env, nil
}

func malformedForm(what string) error {
	return New(InvalidRequest, "The form is not well formed: "+what)
}

// skipBlanks returns the first index from i that is neither a space nor a tab.
func skipBlanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t') {
		i++
	}
	return i
}

// hasExtendedName reports whether a disposition has the name of its part in another form
// beside the plain one (name*, name*0): parsers differ about which counts.
func hasExtendedName(disposition string) bool {
	quoted, begins := false, 0
	for i := 0; i <= len(disposition); i++ {
		switch {
		case i == len(disposition) || disposition[i] == ';' && !quoted:
			key, _, _ := strings.Cut(disposition[begins:i], "=")
			if key, _, extended := strings.Cut(strings.ToLower(strings.TrimSpace(key)), "*"); extended && strings.TrimSpace(key) == "name" {
				return true
			}
			begins = i + 1
		case disposition[i] == '"':
			quoted = !quoted
		case disposition[i] == '\\' && quoted:
			i++
		}
	}
	return false
}

// addPart reads the Envelope's fields from one part; at is the offset of its value.
func (e *Envelope) addPart(name string, file bool, value []byte, at span) error {
	switch {
	case file && strings.EqualFold(name, "model"):
		return malformedForm("model must be a field, not a file.")
	case file:
	case name == "model":
		if len(value) > maxField {
			return malformedForm("model is too long.")
		}
		for _, c := range value {
			if c < 0x20 || c > 0x7e {
				return malformedForm("model has characters that no name has.")
			}
		}
		e.Model = string(value)
		e.model = at
	case name == "stream":
		switch strings.ToLower(string(value)) {
		case "true", "1":
			e.Stream = true
		case "false", "0", "":
		default:
			return malformedForm("stream must be a boolean.")
		}
	case strings.EqualFold(name, "model"):
		return New(MissingRequiredParameter, "You must provide a model parameter: names are case-sensitive, use model.")
	default:
		return checkField(name, value)
	}
	return nil
}

// checkField checks a field by the bounds of the JSON member of its name.
func checkField(name string, value []byte) error {
	key := []byte(strings.TrimSuffix(name, "[]"))
	literal := appendQuoted(nil, string(value))
	if _, ok := parseInteger(value); ok || string(value) == "true" || string(value) == "false" {
		literal = value
	}
	var err error
	switch string(key) {
	case "n":
		err = between(key, literal, 1, MaxN)
	case "max_completion_tokens", "max_output_tokens", "max_tokens":
		_, err = parseMaxTokens(key, value)
	default:
		err = new(peeker).checkMember(key, literal, 0)
	}
	if e, ok := err.(*Error); ok {
		return e.With(name)
	}
	return err
}

// partName reads the head of a part: exactly one Content-Disposition, form-data,
// with a plain name.
func partName(head string) (name string, file, ok bool) {
	for line := range strings.SplitSeq(head, "\r\n") {
		k, v, found := strings.Cut(line, ":")
		if !found || strings.ContainsAny(line, "\r\n\x00") || strings.ContainsAny(k, " \t") {
			return "", false, false
		}
		if !strings.EqualFold(k, "content-disposition") {
			continue
		}
		media, params, err := mime.ParseMediaType(v)
		if ok || err != nil || media != "form-data" || hasExtendedName(v) || strings.Contains(params["name"], "\\") {
			return "", false, false
		}
		name, ok = params["name"]
		_, file = params["filename"]
	}
	return name, file, ok
}
