package openai

import "testing"

// TestSections: where the parts of a body are; messages count before prompt, the first of
// two formats before the second, null is absent.
func TestSections(t *testing.T) {
	for _, c := range []struct {
		body string
		at   Section
		want string
	}{
		{`{"model":"m","messages":[ ]}`, SectionPrompt, `[ ]`},
		{`{"model":"m","prompt":"p","messages":[1]}`, SectionPrompt, `[1]`},
		{`{"model":"m","messages":[1],"prompt":"p"}`, SectionPrompt, `[1]`},
		{`{"model":"m","inp\u0075t":"p"}`, SectionPrompt, `"p"`},
		{`{"model":"m","prompt":null}`, SectionPrompt, ``},
		{`{"model":"m","system":"s","instructions":"i"}`, SectionSystem, `"s"`},
		{`{"model":"m","query":"q","documents":["a"]}`, SectionTexts, `["a"]`},
		{`{"model":"m","tools":[{}]}`, SectionTools, `[{}]`},
		{`{"model":"m","response_format":null,"text":{}}`, SectionFormat, `{}`},
		{`{"model":"m","guided_choice":["a"]}`, SectionGuided, `["a"]`},
		{`{"model":"m"}`, SectionPrompt, ``},
	} {
		e, err := Peek([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		if got := string(e.Section([]byte(c.body), c.at)); got != c.want {
			t.Errorf("%s: %s, want %s", c.body, got, c.want)
		}
	}
}

// TestStructured: which requests bind the form of their answer.
func TestStructured(t *testing.T) {
	for body, want := range map[string]bool{
		`{"model":"m","tools":[{"type":"function","name":"f","strict":true}]}`:               true, // as responses have it
		`{"model":"m","tools":[{"type":"function","function":{"name":"f","strict":true}}]}`:  true,
		`{"model":"m","tools":[{"type":"function","function":{"name":"f","strict":false}}]}`: false,
		`{"model":"m","tools":[{"function":{"parameters":{"strict":true}}}]}`:                false, // a parameter of that name
		`{"model":"m","response_format":{"type":"json_object"}}`:                             true,
		`{"model":"m","response_format":{"type":"text"}}`:                                    false,
		`{"model":"m","text":{"format":{"type":"json_schema"}}}`:                             true,
		`{"model":"m","guided_choice":["a"]}`:                                                true,
		`{"model":"m"}`:                                                                      false,
	} {
		e, err := Peek([]byte(body))
		if got := e.Structured([]byte(body)); got != want || err != nil {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
}
