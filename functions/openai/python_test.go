package openai

import (
	"bytes"
	"encoding/json/v2"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
)

// Engines are mostly written in Python: what Peek takes, json.loads must read
// alike. Bodies are made of pieces that parsers are known to differ about.
func TestPeekAgreesWithPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	pieces := []string{`{`, `}`, `[`, `]`, `,`, `:`, ` `, "\t", "\n", "\v", "\u00a0", "\ufeff", `"model"`, `"Model"`, `"mo\u0064el"`, `"stream"`, `"n"`,
		`true`, `false`, `null`, `True`, `NaN`, `Infinity`, `1`, `0`, `-0`, `1.0`, `1e3`, `01`, `1_0`, `0x1`, `1e400`, `-1`, `"a"`, `"\ud800"`, `"\ud83d\ude00"`, `"\u0000"`, "\"\x7f\"", `"\/"`, `'a'`, `//x`, "\x00", `"é"`,
		`"model":"a"`, `,"model":"b"`, `"stream":true`, `,"stream":false`, `,"n":2`, `,"n":1.0`, `,"x":{"model":"c"}`}
	rng := rand.New(rand.NewPCG(1, 2))
	type taken struct {
		Body, Model string
		Stream      bool
		N           int
	}
	var all []taken
	for range 60_000 {
		body := `{"model":"a"`
		if rng.IntN(2) == 0 {
			body = "{"
		}
		for range rng.IntN(8) {
			body += pieces[rng.IntN(len(pieces))]
		}
		if rng.IntN(4) > 0 {
			body += "}"
		}
		if e, err := Peek([]byte(body)); err == nil {
			all = append(all, taken{body, e.Model, e.Stream, e.N})
		}
	}
	in, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", `
import json, sys
for t in json.load(sys.stdin.buffer):
    try:
        b = json.loads(t["Body"].encode())
        ok = b["model"] == t["Model"] and bool(b.get("stream")) == t["Stream"] and (1 if b.get("n") is None else b["n"]) == t["N"]
    except Exception as e:
        ok = False
    if not ok:
        print(repr(t))
`)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	if t.Log(fmt.Sprint(len(all), " bodies")); len(all) < 1000 {
		t.Error("too few bodies were taken to say anything")
	}
}
