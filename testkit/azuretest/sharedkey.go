package azuretest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxSkew is how far x-ms-date may be from now.
const maxSkew = 15 * time.Minute

const notAuthenticated = "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly " +
	"including the signature."

// authorized reports whether r is signed with the key or holds SAS; otherwise it answers
// with 403, and like Azure with the string that should have been signed.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request) bool {
	query := r.URL.Query()
	if query.Has("sig") {
		want, err := url.ParseQuery(SAS)
		for name, values := range want {
			if err != nil || !slices.Equal(query[name], values) {
				Refuse(w, http.StatusForbidden, "AuthenticationFailed", notAuthenticated,
					"Signature did not match. String to sign used was "+query.Get("sig"))
				return false
			}
		}
		return true
	}
	toSign, problem := stringToSign(r)
	if problem != "" {
		Refuse(w, http.StatusForbidden, "AuthenticationFailed", notAuthenticated, problem)
		return false
	}
	key, err := base64.StdEncoding.DecodeString(s.Key)
	if err != nil {
		panic("the key of the server is not base64")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(toSign))
	want := "SharedKey " + Account + ":" + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	if got := r.Header.Get("Authorization"); got != want {
		Refuse(w, http.StatusForbidden, "AuthenticationFailed", notAuthenticated,
			"The MAC signature found in the HTTP request '"+got+
				"' is not the same as any computed signature. Server used following string to sign: '"+toSign+"'.")
		return false
	}
	return true
}

// stringToSign builds what a client signs with the account's key, by the rules that are
// published as "Authorize with Shared Key" for version 2015-02-21 and later: twelve lines
// of the method and standard headers, every x-ms- header, and the resource.
func stringToSign(r *http.Request) (toSign, problem string) {
	date, err := http.ParseTime(r.Header.Get("x-ms-date"))
	if age := time.Since(date); err != nil || age > maxSkew || age < -maxSkew {
		return "", "Request date header too old: '" + r.Header.Get("x-ms-date") + "'"
	}
	length := ""
	if r.ContentLength > 0 {
		length = strconv.FormatInt(r.ContentLength, 10)
	}
	lines := []string{
		r.Method, r.Header.Get("Content-Encoding"), r.Header.Get("Content-Language"), length,
		r.Header.Get("Content-MD5"), r.Header.Get("Content-Type"),
		"", // Date, which x-ms-date replaces
		r.Header.Get("If-Modified-Since"), r.Header.Get("If-Match"), r.Header.Get("If-None-Match"),
		r.Header.Get("If-Unmodified-Since"), r.Header.Get("Range"),
	}
	fields := map[string]string{}
	for name, values := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-ms-") {
			fields[name] = strings.Join(values, ",")
		}
	}
	for _, name := range sortedNames(fields) {
		lines = append(lines, name+":"+strings.TrimSpace(fields[name]))
	}
	// The resource is the account, then the path as it was sent: where the account is in
	// the path, as on emulators, it is there twice.
	path, _, _ := strings.Cut(r.RequestURI, "?")
	lines = append(lines, "/"+Account+path)
	parameters := map[string]string{}
	for name, values := range r.URL.Query() {
		values = slices.Clone(values)
		slices.Sort(values)
		parameters[strings.ToLower(name)] = strings.Join(values, ",")
	}
	for _, name := range sortedNames(parameters) {
		lines = append(lines, name+":"+parameters[name])
	}
	return strings.Join(lines, "\n"), ""
}

func sortedNames(values map[string]string) []string {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
