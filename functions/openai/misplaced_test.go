package openai

import (
	"strings"
	"testing"
)

// TestMisplacedJSON: bodies as public reports have them, and what the error says to change.
func TestMisplacedJSON(t *testing.T) {
	utf16 := string([]byte{0xFF, 0xFE, '{', 0, '"', 0})
	for body, want := range map[string]string{
		`{'model':'m'}`:                        "a string is expected at byte 1, not `'model':'m'}`: texts and names stand in double quotes",
		`{\"model\":\"m\"}`:                    "its quotes are escaped once too often",
		`{model:"m"}`:                          "a string is expected at byte 1, not `model:\"m\"}`: names stand in double quotes",
		`{"model":"m","messages":[],}`:         "a string is expected at byte 27, not `}`: no comma or colon may stand before it",
		`{"model":"m","stop":["a",]}`:          "no comma or colon may stand before it",
		`{"model":"m", // x`:                   "JSON has no comments",
		`{"model":"m" # x`:                     "JSON has no comments",
		`{"model":"m","temperature":NaN`:       "not `NaN`: JSON has no such number: leave the member out",
		`{"model":"m","max_tokens":-Infinity}`: "JSON has no such number",
		`{"model":"m","stream":True}`:          "write true",
		`{"model":"m","user":None}`:            "write null",
		`{"model" "m"}`:                        "a colon is expected at byte 9, not `\"m\"}`.",
		`{"model":"m","n":aaaaaaaaaaaaaaaé}`:   "not `aaaaaaaaaaaaaaa`",
		"{\"model\":\x01a":                     "not `?a`", "{\"model\":`a": "not `?a`", `{abc:1}`: "names stand in double quotes", "\xfea": "is not valid UTF-8", `{zoo:1}`: "names stand in double quotes", `{Zoo:1}`: "names stand in double quotes",
		"{\"model\":\x7fa":                      "not `?a`",
		`{"model":"\u0041`:                      "it ends inside a string",
		`{"model"`:                              "it ends where a colon is expected",
		`[{"model":"m"}]`:                       "not an array: send each request by itself",
		`model=m&prompt=x`:                      "it begins with `model=m&prompt=x`: send JSON as it is",
		`data: {"model":"m"}`:                   "it begins with `data:`",
		"{\"model\":\"a\nb\"}":                  "write it as an escape, a line break as \\n",
		"{\"model\":\"caf\xe9\"}":               "encode it as UTF-8",
		`{"model":"m","user":"C:\Users"}`:       `a backslash itself is written \\.`,
		`{"model":"m","guided_regex":"(?=a)b"}`: "without lookarounds",
		utf16:                                   "it is UTF-16 or UTF-32: encode it as UTF-8",
		"{\x00\"\x00":                           "it is UTF-16 or UTF-32",
		"\x00{\x00\"":                           "it is UTF-16 or UTF-32",
		`{"model":"m","n":"2"}`:                 "n must be an integer from 1 to 8. It is a string: send the number without quotes.",
		`{"model":"m","logit_bias":[1]}`:        "logit_bias must be an object",
	} {
		_, err := Peek([]byte(body))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v\nlacks %s", body, err, want)
		}
	}
	if _, err := Peek([]byte(`{"model":"m","logit_bias":[ ]}`)); err != nil {
		t.Errorf("an empty object as PHP writes it: %v", err)
	}
	for body, want := range map[string]string{
		"--x\r\nA: b\r\n\r\nm\r\n--x--\r\n": "wants one Content-Disposition",
		"--y--\r\n":                         "the boundary that Content-Type names",
	} {
		if _, err := PeekMultipart("multipart/form-data; boundary=x", []byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", body, err)
		}
	}
	if _, err := Peek([]byte(`{"model":"m","chat_template":"x"}`)); err == nil || !strings.Contains(err.Error(), "leave it out. What an engine does for all requests") {
		t.Errorf("an engine's own parameter: %v", err)
	}
}
