package openai

import "testing"

// TestStandardJSON: NaN and the infinities become null, in JSON and in data of events; words in
// strings and in other lines stay.
func TestStandardJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":-Infinity,"b":[NaN, Infinity],"c":"NaN, Infinity"}`: `{"a":null,"b":[null, null],"c":"NaN, Infinity"}`,
		`{"a":"\"NaN"}`: `{"a":"\"NaN"}`,
		`{"a":1}`:       `{"a":1}`,
	} {
		if got := string(StandardJSON([]byte(in))); got != want {
			t.Errorf("%s: %s", in, got)
		}
		const head = ": why=\"NaN\nevent: x\ndata: "
		if got := string(StandardData([]byte(head + in + "\n\ndata: [DONE]\n\n"))); got != head+want+"\n\ndata: [DONE]\n\n" {
			t.Errorf("events of %s: %s", in, got)
		}
	}
	whole := []byte(`{"a":1}`)
	if n := testing.AllocsPerRun(100, func() { whole = StandardData(StandardJSON(whole)) }); n != 0 {
		t.Errorf("%v allocations without such a number", n)
	}
}
