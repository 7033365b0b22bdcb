package httpsource

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/thaw-dev/thaw/functions"
)

const (
	// maxRefusal bounds what is read of a refusal, maxWords what is repeated of it.
	maxRefusal = 64 << 10
	maxWords   = 500
)

// PeekRefusal returns the beginning of the body of a refusal, which may be read again.
func PeekRefusal(r *http.Response) ([]byte, error) {
	if r.StatusCode < 300 || r.Body == nil {
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, maxRefusal))
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), r.Body), r.Body}
	return bytes.TrimSpace(bytes.TrimPrefix(b, []byte("\ufeff"))), err
}

// Words returns the reason that a server gives for a refusal: of the hub's header, of the
// message in XML or JSON, or of a short plain text; "" for any other body, and for a text
// that may hold a credential.
func Words(r *http.Response) string {
	b, err := PeekRefusal(r)
	message := r.Header.Get("X-Error-Message")
	switch {
	case message != "" || len(b) == 0:
	case b[0] == '<':
		var e struct{ Message, AuthenticationErrorDetail string }
		_ = xml.Unmarshal(b, &e) // a page has no message
		message = CleanWords(e.Message, r.Request)
		if message == "" {
			message = describePage(b, r.Request)
		}
		// Azure's detail may hold the string that was signed.
		if d := CleanWords(e.AuthenticationErrorDetail, r.Request); d != "" && !strings.Contains(strings.ToLower(d), "string to sign") {
			message = strings.TrimPrefix(message+": "+d, ": ")
		}
	case b[0] == '{' || b[0] == '[':
		return CleanWords(MessageOf(b), r.Request)
	case err == nil && r.StatusCode >= 400:
		message = plainWords(r, string(b))
	}
	return CleanWords(message, r.Request)
}

// Refusal describes an answer of a service of credentials that is near this machine, whose texts
// hold no secret: its host, the status and its words.
func Refusal(r *http.Response) string {
	b, _ := PeekRefusal(r)
	words := Words(r)
	if words == "" && len(b) > 0 && !strings.ContainsRune("<{[", rune(b[0])) {
		words = CleanWords(string(b), r.Request)
	}
	return strings.TrimSuffix(fmt.Sprintf("%s answered %d: %s", r.Request.URL.Host, r.StatusCode, words), ": ")
}

// describePage describes a page by its title; "" for anything else.
func describePage(b []byte, req *http.Request) string {
	title := pageTitle.FindSubmatch(b)
	if title == nil {
		return ""
	}
	words := CleanWords(strings.Join(strings.Fields(html.UnescapeString(string(title[1]))), " "), req)
	return strings.TrimSuffix(fmt.Sprintf("a page, %q", words), `a page, ""`)
}

var pageTitle = regexp.MustCompile(`(?is)<title[^>]*>(.*?)</title>`)

// MessageOf returns the message of a refusal that b begins with, in JSON: {"error": {"message":
// …}} and the like.
func MessageOf(b []byte) string {
	var v any
	_ = json.NewDecoder(bytes.NewReader(b)).Decode(&v)
	return CleanWords(messageOf(v, 0), nil)
}

func messageOf(v any, depth int) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		if len(v) > 0 && depth < 3 {
			return messageOf(v[0], depth+1)
		}
	case map[string]any:
		for _, name := range []string{"message", "Message", "error_description", "detail", "error", "Error", "errors", "msg", "Msg"} {
			if text := messageOf(v[name], depth+1); text != "" && depth < 3 {
				return text
			}
		}
	}
	return ""
}

// plainWords returns a short plain text that holds no address and no signature.
func plainWords(r *http.Response, text string) string {
	odd := func(c rune) bool { return c < ' ' || c > '~' || strings.ContainsRune("=&%+@", c) }
	long := func(word string) bool { return len(word) > 40 }
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "text/plain" || len(text) >= maxWords ||
		strings.Contains(text, "//") ||
		strings.ContainsFunc(text, odd) || slices.ContainsFunc(strings.Fields(text), long) {
		return ""
	}
	return text
}

// CleanWords returns the first line of a server's message for an error, bounded; "" if it
// repeats the credential of the request that was refused.
func CleanWords(message string, req *http.Request) string {
	message, _, _ = strings.Cut(strings.TrimSpace(message), "\n")
	message = strings.TrimSpace(strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, message))
	if holdsSecret(message, req) {
		return ""
	}
	return strings.TrimSuffix(functions.Shorten(strings.ToValidUTF8(message, ""), maxWords), ".")
}

// Misnamed names the first variable that is set in place of right, as another tool knows it; ""
// where right is set, or none of them.
func Misnamed(env func(string) string, right string, others ...string) string {
	for _, name := range others {
		if env(right) == "" && env(name) != "" {
			return name + " is set, and " + right + " is read; "
		}
	}
	return ""
}

// Quote returns a setting that is no URL for its error; "" if it may hold a secret.
func Quote(setting string) string {
	if strings.ContainsAny(setting, "@?") {
		return ""
	}
	return fmt.Sprintf(" %q", functions.Clip(setting))
}

// holdsSecret reports whether text repeats a credential: of a signed address, or of req.
func holdsSecret(text string, req *http.Request) bool {
	low := strings.ToLower(text)
	if strings.Contains(low, "sig=") || strings.Contains(low, "signature=") || strings.Contains(low, "token=") {
		return true
	}
	if req == nil {
		return false
	}
	// Behind the last blank or colon is Azure's signature, a bearer's token or AWS's Signature=….
	authorization := req.Header.Get("Authorization")
	secrets := []string{strings.TrimPrefix(authorization[strings.LastIndexAny(authorization, " :")+1:], "Signature="),
		req.Header.Get("X-Identity-Header"), req.Header.Get("X-Amz-Security-Token")}
	if req.URL != nil {
		for name, values := range req.URL.Query() {
			if name = strings.ToLower(name); strings.Contains(name, "sig") || strings.HasSuffix(name, "token") {
				for _, v := range values {
					secrets = append(secrets, v, url.QueryEscape(v))
				}
			}
		}
	}
	return slices.ContainsFunc(secrets, func(s string) bool { return s != "" && strings.Contains(text, s) })
}
