package fake

import (
	"fmt"
	"strconv"
	"strings"
)

// The answers are built once. Their sizes are typical: a plain answer of 1.5 KiB, chunks
// of 180 bytes.

const id = "chatcmpl-0123456789abcdef"

// plainResponse is the body of a plain chat answer.
var plainResponse = []byte(`{"id":"` + id + `","object":"chat.completion","created":1694268190,"model":"fake","choices":[{"index":0,"message":{"role":"assistant","content":"` +
	strings.Repeat("lorem ipsum ", 106) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":17,"completion_tokens":212,"total_tokens":229}}`)

// plainText is the same for /v1/completions.
var plainText = []byte(`{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1694268190,"model":"fake","choices":[{"index":0,"text":" lorem","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)

var plainTool = []byte(`{"id":"` + id + `","object":"chat.completion","created":1694268190,"model":"fake","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Köln\"}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":17,"completion_tokens":9,"total_tokens":26}}`)

// chunk returns one event of a stream: the role's, a token's, or the last one's.
func chunk(chat bool, i, of int) string {
	finish := "null"
	if i == of-1 {
		finish = `"stop"`
	}
	if !chat {
		return fmt.Sprintf(`data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1694268190,"model":"fake","choices":[{"index":0,"text":" w%02d","finish_reason":%s}]}`+"\n\n", i, finish)
	}
	role := ""
	if i == 0 {
		role = `"role":"assistant",`
	}
	return fmt.Sprintf(`data: {"id":"%s","object":"chat.completion.chunk","created":1694268190,"model":"fake","choices":[{"index":0,"delta":{%s"content":" w%02d"},"finish_reason":%s}]}`+"\n\n", id, role, i, finish)
}

var toolChunks = []string{
	`data: {"id":"` + id + `","object":"chat.completion.chunk","created":1694268190,"model":"fake","choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]},"finish_reason":null}]}` + "\n\n",
	`data: {"id":"` + id + `","object":"chat.completion.chunk","created":1694268190,"model":"fake","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":\"Köln\"}"}}]},"finish_reason":null}]}` + "\n\n",
	`data: {"id":"` + id + `","object":"chat.completion.chunk","created":1694268190,"model":"fake","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\n",
}

func usageChunk(chat bool, n int) string {
	object := "text_completion"
	if chat {
		object = "chat.completion.chunk"
	}
	return fmt.Sprintf(`data: {"id":"%s","object":"%s","created":1694268190,"model":"fake","choices":[],"usage":{"prompt_tokens":17,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", id, object, n, 17+n)
}

const done = "data: [DONE]\n\n"

// events returns the chunks of the stream that a requests; the last is followed by
// [DONE], which is sent with the end of the body in one write.
func events(chat bool, a Script) []string {
	var es []string
	if a.Tools {
		es = append(es, toolChunks...)
	} else {
		for i := range a.Tokens {
			es = append(es, chunk(chat, i, a.Tokens))
		}
	}
	if a.Usage {
		es = append(es, usageChunk(chat, a.Tokens))
	}
	return append(es, done)
}

// PlainBody returns the answer to a plain chat request, for checks.
func PlainBody() []byte { return plainResponse }

// StreamBody returns the answer to a streamed chat request with this many tokens,
// without the usage chunk, for checks.
func StreamBody(tokens int) []byte {
	return []byte(strings.Join(events(true, Script{Tokens: tokens}), ""))
}

func framed(s string) []byte {
	return []byte(strconv.FormatInt(int64(len(s)), 16) + "\r\n" + s + "\r\n")
}

const (
	okJSON = "HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 10:00:00 GMT\r\nserver: fake\r\ncontent-type: application/json\r\ncontent-length: "
	okSSE  = "HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 10:00:00 GMT\r\nserver: fake\r\ncontent-type: text/event-stream; " +
		"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	loading = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
	missing = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
	refused = "HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)

func jsonAnswer(body []byte) []byte {
	return append([]byte(okJSON+strconv.Itoa(len(body))+"\r\n\r\n"), body...)
}
