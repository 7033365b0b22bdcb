package httpsource

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// TestRecordOfMessages: what is repeated of a text, by where in a refusal it stands, and of each
// shape of JSON. A text with a credential is not repeated from anywhere.
func TestRecordOfMessages(t *testing.T) {
	a := strings.Repeat
	refuse := func(status int, media, body string, fields ...string) string {
		r, _ := answer(t.Context(), status, strings.NewReader(body), int64(len(body)), append(fields, "Content-Type", media)...)
		r.Request.Header = http.Header{"Authorization": {"SharedKey abc:SECRETkey"}, "X-Identity-Header": {"SECRETidentity"},
			"X-Amz-Security-Token": {"SECRETsession"}}
		r.Request.URL.RawQuery = "Sig=SECRET%2Fquery&X-Token=SECRETtoken&token=SECRETplain&tokens=5&prefix=reason"
		return Words(r)
	}
	places := map[string]func(text string) string{
		"plain": func(text string) string { return refuse(400, "text/plain", text) },
		"XML": func(text string) string {
			return refuse(400, "application/xml", "<Error><Message>"+strings.ReplaceAll(text, "&", "&amp;")+"</Message></Error>")
		},
		"detail": func(text string) string {
			const begin, end = "<Error><Message>no.</Message><AuthenticationErrorDetail>", "</AuthenticationErrorDetail></Error>"
			return refuse(400, "application/xml", begin+strings.ReplaceAll(text, "&", "&amp;")+end)
		},
		"JSON": func(text string) string {
			b, _ := json.Marshal(map[string]string{"message": text})
			return refuse(400, "application/json", string(b))
		},
		"header": func(text string) string { return refuse(400, "text/html", "<html>", "X-Error-Message", text) },
	}
	var out strings.Builder
	for _, text := range []string{
		"the reason.", " the reason ", "one\ntwo", "a\tb", "\u00fc\u200bx", "x\xff", a("ab ", 166) + "c", a("ab ", 166) + "cd", a("ab ", 167) + "c", a("x", 40), a("x", 41), "a/b", "a//b",
		"a=b", "a&b", "a%b", "a+b", "a@b", "a?b", "a~b", "of SECRETkey", "of SECRETidentity", "of SECRETsession", "of SECRET/query", "of SECRET%2Fquery", "of SECRETtoken", "of SECRETplain", "5", "reason",
		"x sig=1", "x Sig=1", "x signature=1", "x X-Amz-Signature=1", "x token=1", "The String To Sign was x", "...",
	} {
		before := ""
		for _, place := range []string{"plain", "XML", "detail", "JSON", "header"} {
			got := places[place](text)
			if strings.Contains(got, "SECRET") {
				t.Errorf("%q in %s: %q", text, place, got)
			}
			if got != before {
				fmt.Fprintf(&out, "%.50q of %d bytes in %s: %d %.60q\n", text, len(text), place, len(got), got)
			}
			before = got
		}
	}
	for _, body := range []string{
		`[]`, `["a","b"]`, `[["a"]]`, `[[["a"]]]`, `[[[["a"]]]]`, `[[[[["a"]]]]]`, `{"error":"a"}`, `{"errors":"a"}`, `{"detail":"a"}`, `{"error_description":"a"}`,
		`{"message":"a","error_description":"b","detail":"c","error":"d","errors":"e"}`, `{"error_description":"b","detail":"c","error":"d","errors":"e"}`, `{"detail":"c","error":"d","errors":"e"}`,
		`{"error":"d","errors":"e"}`, `{"other":"a"}`, `{"error":{"message":"a"}}`, `{"error":{"error":{"message":"a"}}}`, `{"error":{"error":{"error":{"message":"a"}}}}`,
		`{"error":{"error":{"error":{"error":{"message":"a"}}}}}`, `{"error":5,"errors":["a"]}`, `{"message":"","error":"d"}`, `{"message":"a"} and more`, `{"message":"a"`, `5`, `"a"`,
	} {
		fmt.Fprintf(&out, "%s: %q\n", body, MessageOf([]byte(body)))
	}
	for _, status := range []int{200, 299, 300, 301, 399, 400, 500} {
		fmt.Fprintf(&out, "%d: %q and %q\n", status, refuse(status, "text/plain", "the reason"), refuse(status, "", `["the reason"]`))
	}
	sourcetest.Compare(t, "messages.txt", out.String())
}
