package jsonerror_test

import (
	"encoding/json/v2"
	"errors"
	"testing"

	"github.com/thaw-dev/thaw/functions/jsonerror"
)

// span reads its own text.
type span int

func (*span) UnmarshalText([]byte) error { return errors.New("no span") }

func TestDescribe(t *testing.T) {
	type inner struct {
		List []string `json:"list"`
	}
	var into struct {
		Text   string         `json:"text"`
		On     bool           `json:"on"`
		Whole  *int           `json:"whole"`
		Number float64        `json:"number"`
		Map    map[string]int `json:"map"`
		Inner  inner          `json:"inner"`
		Wait   span           `json:"wait"`
	}
	for in, want := range map[string]string{
		`{"text":5}`:             "`text` is a number, not a string",
		`{"on":"yes"}`:           "`on` is a string, not true or false",
		`{"whole":"5"}`:          "`whole` is a string, not a whole number",
		`{"whole":1.5}`:          "`whole` is a number, not a whole number",
		`{"number":[1]}`:         "`number` is a list, not a number",
		`{"map":null,"inner":3}`: "`inner` is a number, not an object",
		`{"inner":{"list":{}}}`:  "`inner/list` is an object, not a list",
		`{"txet":"a"}`:           "`txet` is no member of it",
		`{"wait":"x"}`:           "`wait`: no span",
		`{"wait":5}`:             "`wait` is a number, not a string",
		`[]`:                     "it is a list, not an object",
	} {
		err := json.Unmarshal([]byte(in), &into, json.RejectUnknownMembers(true))
		if e, ok := errors.AsType[*json.SemanticError](err); !ok || jsonerror.Describe(e) != want {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}
