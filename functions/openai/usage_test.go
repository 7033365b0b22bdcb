package openai

import (
	"strings"
	"testing"
)

// TestUsageAppend: the member usage of an answer, with the sum of both counts.
func TestUsageAppend(t *testing.T) {
	if got := string(Usage{Prompt: 3, Completion: 20}.Append([]byte(`"usage":`))); got != `"usage":{"prompt_tokens":3,"completion_tokens":20,"total_tokens":23}` {
		t.Error(got)
	}
}

// TestUsageScan: usage counts wherever the answer's object has it, and nowhere else.
func TestUsageScan(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":17,"prompt_tokens_details":{"completion_tokens":9},"total_tokens":229,"completion_tokens":212}`
	choices := `"choices":[{"message":{"content":"` + strings.Repeat(`lorem \"usage\":{\"prompt_tokens\":1} `, 500) + `"},"usage":{"prompt_tokens":1}}]`
	logprobs := `"prompt_logprobs":[` + strings.Repeat(`{"usage":{"prompt_tokens":1}},`, 500) + `null]`
	both := Usage{17, 212, true}
	for _, x := range []struct {
		name, body string
		want       Usage
	}{
		{"at the end", `{` + choices + `,` + usage + `}`, both},
		{"at the beginning", `{` + usage + `,` + choices + `}`, both},
		{"before a field that the client chose", `{` + choices + `,` + usage + `,` + logprobs + `}`, both},
		{"behind blanks", "\r\t \n{" + usage + "\r}", both},
		{"in lines", "\n{\n \"usage\" : {\n  \"input_tokens\" : 17 ,\n  \"output_tokens\" : 212\n }\n,\"a\":1}\n", both},
		{"with an escape in its name", `{"\u0075sage":{"prompt_tokens":17,"completion_tokens":212}}`, both},
		{"twice", `{"usage":{"prompt_tokens":1,"completion_tokens":1},"id":"\\","usage":{"prompt_tokens":17,"completion_tokens":212}}`, both},
		{"of a prompt alone", `{"usage":{"prompt_tokens":17,"completion_tokens":null},"data":[]}`, Usage{17, 0, true}},
		{"null", `{"usage":null,"prompt_tokens":3}`, Usage{}},
		{"in a list", `{"usage":["prompt_tokens",1,{"prompt_tokens":1}]}`, Usage{}},
		{"as a text", `{"x":"usage","y":{"prompt_tokens":1},"usage":{"prompt_tokens":"1"}}`, Usage{}},
		{"of a part alone", `{` + choices + `,` + logprobs + `}`, Usage{}},
		{"too many digits", `{"usage":{"prompt_tokens":99999999999999999999999}}`, Usage{999999999999999, 0, true}},
		{"in something else", `ID3{` + usage + `}`, Usage{}},
		{"behind the object", `{}{` + usage + `}`, Usage{}},
		{"none", `{"error":{"message":"no"}}`, Usage{}},
	} {
		for _, size := range []int{1, 7, 1500, 1 << 20} {
			var s UsageScan
			for p := []byte(x.body); len(p) > 0; {
				n := min(size, len(p))
				s.Observe(p[:n])
				p = p[n:]
			}
			if s.Usage() != x.want {
				t.Errorf("%s, in pieces of %d: %+v, want %+v", x.name, size, s.Usage(), x.want)
			}
		}
	}
}

func BenchmarkUsageScan(b *testing.B) {
	body := []byte(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1694268190,"model":"m","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"` + strings.Repeat("lorem ipsum ", 106) + `"},"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":17,"completion_tokens":212,"total_tokens":229}}`)
	b.ReportAllocs()
	for b.Loop() {
		var s UsageScan
		if s.Observe(body); !s.Usage().Known {
			b.Fatal("it has no usage")
		}
	}
}
