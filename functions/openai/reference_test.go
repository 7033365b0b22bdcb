package openai

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNumbersAgree: of all short texts of the characters of numbers, those that
// encoding/json takes are taken, up to what a double holds.
func TestNumbersAgree(t *testing.T) {
	const characters = "019.eE+-"
	var try func(text string)
	taken := 0
	try = func(text string) {
		end, err := scanNumber([]byte(text), 0)
		ok := err == nil && end == len(text)
		if want := jsontext.Value(text).IsValid(); ok != want {
			if _, err := strconv.ParseFloat(text, 64); !want || err == nil && !strings.ContainsAny(text, "eE") {
				t.Fatalf("%s: %v, want %v", text, ok, want)
			}
		}
		if ok {
			taken++
		}
		if len(text) < 5 {
			for _, c := range characters {
				try(text + string(c))
			}
		}
	}
	try("")
	if taken < 300 {
		t.Errorf("%d numbers were taken", taken)
	}
	for _, text := range []string{"1", "-1", "10", "0.5", "1e5", "1E-5", "1e+05", "-0.0e-0"} {
		for _, behind := range []string{"", ",", "}", " ", "x", "."} { // where it ends
			end, err := scanNumber([]byte("[["+text+behind), 2)
			if want := 2 + len(text); behind != "." && (end != want || err != nil) {
				t.Errorf("%s: ends at %d, %v", text+behind, end, err)
			}
		}
	}
}

// TestStringsAgree: a byte of any value, an escape of any character and a cut anywhere are
// taken and refused as encoding/json does, at each place in the eight bytes that are read at
// once.
func TestStringsAgree(t *testing.T) {
	check := func(text string) {
		t.Helper()
		for pad := range 17 {
			literal := `"` + strings.Repeat("x", pad) + text + `"`
			for cut := len(literal); cut >= max(0, len(literal)-len(text)-1); cut-- {
				b := append([]byte(literal[:cut]), "  ,"...)
				end, escaped, err := scanString(b[:cut], 0)
				want := jsontext.Value(literal[:cut]).IsValid(jsontext.AllowInvalidUTF8(true))
				if ok := err == nil && end == cut; ok != want && !(ok && strings.Contains(strings.ToLower(text), `\ud`)) {
					t.Fatalf("%q: taken %v, want %v (%v)", literal[:cut], ok, want, err)
				}
				if err == nil && escaped != strings.Contains(literal[:end], `\`) {
					t.Fatalf("%q: escapes %v", literal[:cut], escaped)
				}
			}
		}
	}
	for c := range 256 {
		check(string([]byte{byte(c)}))
		check("a" + string([]byte{byte(c)}) + "b")
		check(`\` + string([]byte{byte(c)}))
		for at := range 4 {
			digits := []byte("0aF9")
			digits[at] = byte(c)
			check(`\u` + string(digits))
		}
	}
	for _, half := range []string{`\ud800`, `\uDBFF`, `\udc00`, `\uDFFF`, `\ud7ff`, `\ue000`} { // see scanEscape
		for _, behind := range []string{"", "a", `\n`, `\udc00`, `\uDFFF`, `\ud800`, `\u0041`} {
			if end, escaped, err := scanString([]byte(`"`+half+behind+`"`), 0); end != 8+len(behind) || !escaped || err != nil {
				t.Errorf("%s: ends at %d, %v", half+behind, end, err)
			}
		}
	}
}

// randomValue is the JSON of some value, with whatever space and escapes JSON may have.
// Keys are drawn from names.
func randomValue(rng *rand.Rand, depth int, names []string) string {
	space := func() string { return []string{"", "", "", " ", "\n\t", "\r\n  "}[rng.IntN(6)] }
	word := func() string {
		w := names[rng.IntN(len(names))]
		switch rng.IntN(8) {
		case 0: // the same, escaped
			i := rng.IntN(len(w))
			return w[:i] + fmt.Sprintf(`\u%04x`, w[i]) + w[i+1:]
		case 1:
			return w + `\"` + w
		case 2:
			return w + `\\`
		case 3:
			return ""
		case 4:
			return strings.Repeat(w, 1+rng.IntN(8))
		}
		return w
	}
	kind := rng.IntN(9)
	if depth <= 0 {
		kind = rng.IntN(5)
	}
	var b strings.Builder
	switch kind {
	case 0, 1:
		return `"` + word() + `"`
	case 2, 3:
		return strconv.Itoa(rng.IntN(100_000))
	case 4:
		return []string{"null", "true", "false", "-1.5e3", `"{}[],:"`}[rng.IntN(5)]
	case 5, 6, 7:
		b.WriteString("{" + space())
		for i := range rng.IntN(5) {
			if i > 0 {
				b.WriteString("," + space())
			}
			b.WriteString(`"` + word() + `"` + space() + ":" + space() + randomValue(rng, depth-1, names) + space())
		}
		b.WriteString("}")
	default:
		b.WriteString("[" + space())
		for i := range rng.IntN(4) {
			if i > 0 {
				b.WriteString("," + space())
			}
			b.WriteString(randomValue(rng, depth-1, names) + space())
		}
		b.WriteString("]")
	}
	return b.String()
}

// pass sends a text in random pieces.
func pass(rng *rand.Rand, text string, to func(p []byte)) {
	for p := []byte(text); len(p) > 0; {
		n := min(len(p), 1+rng.IntN(12))
		if rng.IntN(4) == 0 {
			n = len(p)
		}
		to(bytes.Clone(p[:n]))
		p = p[n:]
	}
}

// member is one of an object, in the order of its text.
type member struct{ name, value string }

// membersOf reads an object with encoding/json; nil where the value is none.
func membersOf(value jsontext.Value) (all []member) {
	d := jsontext.NewDecoder(bytes.NewReader(value), Tolerant)
	if d.PeekKind() != '{' {
		return nil
	}
	d.ReadToken()
	for d.PeekKind() == '"' {
		var m member
		json.UnmarshalDecode(d, &m.name)
		v, _ := d.ReadValue()
		m.value = string(v)
		all = append(all, m)
	}
	return all
}

// TestMembersAgree: eachMember reads the members that encoding/json does, and so do the
// functions of errors on it.
func TestMembersAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 10_000 {
		text := randomValue(rng, 3, []string{"error", "type", "object", "message", "a"})
		var got []member
		if text[0] == '{' {
			eachMember([]byte(text), func(name, value []byte) bool {
				got = append(got, member{string(unquote([]byte(`"` + string(name) + `"`))), string(value)})
				return true
			})
		}
		want := membersOf(jsontext.Value(text))
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Fatalf("%s: %q, want %q", text, got, want)
		}
		if strings.Contains(text, `\u`) {
			continue // names are compared as they are written
		}
		isError := false
		for _, m := range want {
			switch v := m.value; m.name {
			case "error":
				isError = v != "null" && v != "false" && v != "0" && v != `""` && v != "{}" && v != "[]"
			case "type", "object":
				isError = v == `"error"`
			}
			if isError {
				break
			}
		}
		if IsErrorObject([]byte(text)) != isError {
			t.Fatalf("%s: an error is %v", text, isError)
		}
	}
	for value, want := range map[string]bool{"null": false, "false": false, "0": false, `""`: false, "{}": false, "[]": false, "true": true, "1": true, `"a"`: true, `{"a":1}`: true, "[1]": true} {
		if got := IsErrorObject([]byte(`{"error":` + value + `}`)); got != want {
			t.Errorf("error %s: %v", value, got)
		}
	}
	for text, want := range map[string]bool{
		`{"id":"x","choices":null,"error_type":"BadRequestError","error_message":"too large"}`: true,
		`{"error_message":"too large"}`:                         true,
		`{"error_message":"a warning","choices":[{"index":0}]}`: false,
		`{"error_message":null,"choices":[]}`:                   false,
	} {
		if got := IsErrorObject([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	for _, torn := range []string{`{"error"`, `{"error":`, `{"error" 1}`, `{"error"}`, `["error"]`, `{"a":1 "error":1}`, `{"a":1;"error":1}`, `["error":"x"}`, `"error":"x"`} {
		if IsErrorObject([]byte(torn)) {
			t.Errorf("%s is an error", torn)
		}
	}
	if !IsErrorObject([]byte(`{"error":{"message":"x`)) {
		t.Error("a torn error is none")
	}
}

// TestUsageAgrees: of random answers in random pieces, UsageScan reads what encoding/json
// finds in the member usage of the answer.
func TestUsageAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	known := 0
	for range 10_000 {
		text := randomValue(rng, 4, []string{"usage", "prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "a"})
		if rng.IntN(2) == 0 {
			text = `{"usage":` + text + `,"usage":` + randomValue(rng, 1, []string{"prompt_tokens", "output_tokens"}) + `}`
		}
		var want Usage
		for _, m := range membersOf(jsontext.Value(text)) {
			if m.name != "usage" {
				continue
			}
			for _, n := range membersOf(jsontext.Value(m.value)) {
				count, err := strconv.ParseInt(n.value, 10, 64)
				isCount := err == nil
				switch n.name {
				case "prompt_tokens", "input_tokens":
					want.Prompt = count
				case "completion_tokens", "output_tokens":
					want.Completion = count
				default:
					isCount = false
				}
				want.Known = want.Known || isCount
			}
		}
		if strings.Contains(text, "-1.5e3") { // no count of tokens
			continue
		}
		var s UsageScan
		pass(rng, text, s.Observe)
		s.Observe([]byte(` {"usage":{"prompt_tokens":7}}`)) // behind the answer
		if s.Usage() != want {
			t.Fatalf("%s: %+v, want %+v", text, s.Usage(), want)
		}
		if want.Known {
			known++
		}
	}
	if known < 400 {
		t.Errorf("%d of the answers had a usage", known)
	}
}

// renamed is what a Renamer makes of a JSON, written with encoding/json's tokens.
func renamed(text string) string {
	out := []byte(text)
	d := jsontext.NewDecoder(strings.NewReader(text), Tolerant)
	var cuts [][2]int64
	var path [16]string // the last key at each depth
	for {
		tok, err := d.ReadToken()
		if err != nil {
			break
		}
		depth := d.StackDepth()
		if tok.Kind() != '"' || depth == 0 {
			continue
		}
		kind, length := d.StackIndex(depth)
		if kind == '{' && length%2 == 1 {
			path[depth] = tok.String()
			continue
		}
		top := depth == 1 || depth == 2 && (path[1] == "response" || path[1] == "message")
		if first, _ := d.StackIndex(1); kind == '{' && first == '{' && top && path[depth] == "model" {
			end := d.InputOffset()
			begin := end - 1
			for text[begin-1] != ':' && text[begin-1] > ' ' { // the literal has no space
				begin--
			}
			cuts = append(cuts, [2]int64{begin, end})
		}
	}
	for i := len(cuts) - 1; i >= 0; i-- {
		out = append(append(bytes.Clone(out[:cuts[i][0]]), `"NEW"`...), out[cuts[i][1]:]...)
	}
	return string(out)
}

// TestRenamerAgrees: of random answers in random pieces, Renamer changes the names that
// encoding/json finds, and no other byte.
func TestRenamerAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	changed := 0
	for range 10_000 {
		names := []string{"model", "response", "message", "a"}
		text := randomValue(rng, 4, names)
		if rng.IntN(2) == 0 {
			text = `{"` + names[rng.IntN(4)] + `":` + text + `, "model" : ` + randomValue(rng, 0, names) + "}"
		}
		if strings.Contains(text, `"{}[],:"`) {
			continue // renamed looks for a colon
		}
		want := renamed(text)
		for _, events := range []bool{false, true} {
			in, want := text, want
			if events {
				line := strings.NewReplacer("\n", " ", "\r", " ", "\t", " ")
				in, want = line.Replace(in), line.Replace(want)
				in, want = "event: "+in+"\ndata: "+in+"\n: "+in+"\n\ndata:"+in+"\r\n\ndatamodel\n",
					"event: "+in+"\ndata: "+want+"\n: "+in+"\n\ndata:"+want+"\r\n\ndatamodel\n"
			}
			r := NewRenamer("NEW", events)
			var out []byte
			pass(rng, in, func(p []byte) { out = r.Append(out, p) })
			if string(out) != want {
				t.Fatalf("%q became\n%q, want\n%q", in, out, want)
			}
		}
		if want != text {
			changed++
		}
	}
	if changed < 500 {
		t.Errorf("%d answers were changed", changed)
	}
}

// TestPeekAgrees: random bodies are taken where encoding/json takes them, with the model
// that it reads, and what Splice makes of them it reads as the same but for the model.
func TestPeekAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	taken := 0
	for range 10_000 {
		text := []byte(randomValue(rng, 3, []string{"model", "a", "stream_options", "include_usage", "b"}))
		if rng.IntN(3) > 0 {
			text = []byte(`{"model":"m", "stream" :true,"x":` + string(text) + `,"stream_options":` + randomValue(rng, 2, []string{"a", "include_usage"}) + "}")
		}
		if rng.IntN(3) == 0 { // a byte that is wrong
			text[rng.IntN(len(text))] = `{}[]:,"\ ax1`[rng.IntN(12)]
		}
		var all map[string]jsontext.Value
		valid := jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true)) &&
			json.Unmarshal(text, &all, jsontext.AllowDuplicateNames(true)) == nil && all != nil
		e, err := PeekUnnamed(text)
		if err == nil && !valid {
			t.Fatalf("%s is taken", text)
		}
		if refused, _ := err.(*Error); err != nil {
			if valid && refused.Code == InvalidJSON && !strings.Contains(refused.Message, "ambiguous") {
				t.Fatalf("%s: %v", text, err)
			}
			continue
		}
		taken++
		out := bytes.Join(e.Splice(nil, text, "other", true), nil)
		before, after := membersOf(text), membersOf(out)
		if !jsontext.Value(out).IsValid(jsontext.AllowDuplicateNames(true)) {
			t.Fatalf("%s became %s", text, out)
		}
		value := func(all []member, name string) string {
			i := slices.IndexFunc(all, func(m member) bool { return m.name == name })
			if i < 0 {
				return ""
			}
			return all[i].value
		}
		asked := value(membersOf(jsontext.Value(value(after, "stream_options"))), "include_usage")
		if value(after, "model") != `"other"` || e.Stream && asked != "true" {
			t.Fatalf("%s became %s", text, out)
		}
		rest := func(all []member) string {
			return fmt.Sprint(slices.DeleteFunc(slices.Clone(all), func(m member) bool {
				return m.name == "model" || m.name == "stream_options" && e.Stream
			}))
		}
		if rest(before) != rest(after) {
			t.Fatalf("%s became %s", text, out)
		}
	}
	if taken < 1500 {
		t.Errorf("%d bodies were taken", taken)
	}
}
