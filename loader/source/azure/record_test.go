package azure

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// TestRecordOfRefusals: what is made of each status and code of the service, and of errors
// before it answers.
func TestRecordOfRefusals(t *testing.T) {
	p := blobLocation{account: "abc", container: "www", prefix: "a"}
	a := &containerAccess{how: "the HOW", fix: "the FIX", setUp: "the SETUP"}
	at, err := url.Parse("https://abc.blob.core.windows.net/www?sig=c2ln+YXR1cmU%3D")
	if err != nil {
		t.Fatal(err)
	}
	refusal := func(status int, body string) *http.Response {
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{"Retry-After": {"7"}},
			Request: &http.Request{Method: http.MethodGet, URL: at,
				Header: http.Header{"Authorization": {"SharedKey abc:SIGNED"}, "X-Identity-Header": {"IDENTITY"}}}}
	}
	message := func(text string) string {
		var b bytes.Buffer
		_ = xml.EscapeText(&b, []byte(text))
		return "<Error><Message>" + b.String() + "</Message></Error>"
	}
	var out strings.Builder
	statuses := []int{302, 400, 401, 403, 404, 405, 407, 408, 409, 410, 411, 412, 416, 425, 429, 500, 503}
	codes := []string{"", "BlobNotFound", "ContainerNotFound", "BlobArchived", "FeatureNotSupported", "UnsupportedHeader", "InvalidHeaderValue", strings.Repeat("x", 59),
		strings.Repeat("x", 60), "\u00fc\n"}
	codes = append(codes, slices.Sorted(maps.Keys(codeFixes))...)
	for _, code := range codes {
		before := ""
		for _, status := range statuses {
			if codeFixes[code] != "" && status != 400 && status != 403 && status != 409 {
				continue
			}
			r := &azcore.ResponseError{StatusCode: status, ErrorCode: code, RawResponse: refusal(status, "")}
			line := strings.Replace(sourcetest.Describe(sdkError(t.Context(), p, a, "f", r)), fmt.Sprint(": ", status), ": STATUS", 1)
			if line != before {
				fmt.Fprintf(&out, "%q %d: %s\n", code, status, line)
			}
			before = line
		}
	}
	for _, text := range []string{"", "Words.", "\u00e4\u00a0b\tc\n d", strings.Repeat("\u00e4", 251), strings.Repeat("x", 499) + "\u00e4", "of SIGNED", "of IDENTITY", "of abc", "of c2ln YXR1cmU=", "of c2ln%20YXR1cmU%3D", "of c2ln+YXR1cmU%3D",
		"sig=x"} {
		r := &azcore.ResponseError{StatusCode: 409, RawResponse: refusal(409, message(text))}
		fmt.Fprintf(&out, "message %.40q: %s\n", text, sourcetest.Describe(sdkError(t.Context(), p, a, "", r)))
	}
	for _, body := range []string{"", "no JSON", `{"error_description":"AADSTS70011: The scope is not valid.\r\nTrace ID: 1"}`, `{"error_description":"of IDENTITY"}`} {
		failed := &azidentity.AuthenticationFailedError{RawResponse: refusal(400, body)}
		fmt.Fprintf(&out, "no token, %.40q: %s\n", body, sourcetest.Describe(sdkError(t.Context(), p, a, "f", failed)))
	}
	for _, err := range []error{errors.New("DefaultAzureCredential: no one"), io.EOF, http.ErrSchemeMismatch} {
		fmt.Fprintf(&out, "%v: %s\n", err, sourcetest.Describe(sdkError(t.Context(), p, a, "f", err)))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	if cancel(over); sdkError(ctx, p, a, "f", io.EOF) != over {
		t.Error("an ended context is not the cause")
	}
	sourcetest.Compare(t, "refusals.txt", out.String())
}

// TestRecordOfConnections: what is read from a connection string, in the environment of an
// account.
func TestRecordOfConnections(t *testing.T) {
	var out strings.Builder
	for _, raw := range []string{
		"", ";", "x", "AccountName=abc", "AccountName=abc;AccountKey=a2V5", " AccountName = abc ; AccountKey = a2V5= ;\n", "accountname=abc;ACCOUNTKEY=a2V5;EndpointSuffix=core.chinacloudapi.cn", "AccountName=abc;AccountKey=a2V5;DefaultEndpointsProtocol=http",
		"AccountKey=a2V5;BlobEndpoint=https://abc.blob.core.windows.net", "AccountKey=a2V5;BlobEndpoint=https://models.example", "AccountName=other;AccountKey=a2V5;BlobEndpoint=https://abc.blob.core.windows.net/", "AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:10000/abc/",
		"SharedAccessSignature=sig=x;BlobEndpoint=https://models.example", "SharedAccessSignature=sig=x;BlobEndpoint=https://abc.z1.blob.storage.azure.net", "SharedAccessSignature=sv=1&sig=x=;AccountName=abc", "SharedAccessSignature=sig=x", "AccountName=abc;BlobEndpoint=ftp://x;AccountKey=a2V5",
		"AccountName=abc;BlobEndpoint=https://x?sig=y;AccountKey=a2V5", "AccountName=abc;BlobEndpoint=https://;AccountKey=a2V5", "UseDevelopmentStorage=true", "UseDevelopmentStorage=false;AccountName=abc;AccountKey=a2V5",
	} {
		for _, account := range []string{"", "env"} {
			c, err := parseConnection(raw, account)
			if err != nil {
				c = connection{}
			}
			fmt.Fprintf(&out, "%q of %q: %+v, %v\n", raw, account, c, err)
		}
	}
	sourcetest.Compare(t, "connections.txt", out.String())
}

// TestContainersApart: each container has a client of its own, and what is read is the file of
// the listing, whatever its name.
func TestContainersApart(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		switch {
		case r.URL.Query().Get("comp") == "list":
			_, container, _ := strings.Cut(r.URL.Path[1:], "/")
			name := "m/" + container + "|a|b.json"
			w.Header().Set("Content-Type", "application/xml")
			fmt.Fprintf(w, "<EnumerationResults><Blobs><Blob><Name>%s</Name><Properties><Etag>1</Etag><Content-Length>2</Content-Length>"+
				"<Content-MD5>AAAA</Content-MD5></Properties></Blob></Blobs></EnumerationResults>", name)
		case r.Method == http.MethodHead:
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Content-Length", "2")
			w.Header().Set("Content-MD5", "AAAA") // of no use
		default:
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Content-Range", "bytes 0-1/2")
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, "{}")
		}
	}))
	defer srv.Close()
	s := New(Options{Endpoint: srv.URL + "/abc", Getenv: func(name string) string {
		return map[string]string{"AZURE_STORAGE_ACCOUNT": "abc", "AZURE_STORAGE_SAS_TOKEN": "?sig=a+b"}[name]
	}})
	defer s.Close()
	for _, location := range []string{"az://abc/one/m", "az://abc/two/m", "az://abc/one/m", "az://abc/one/m/x.gguf", "https://abc.blob.core.windows.net/two/m"} {
		plan, err := s.Plan(t.Context(), location, nil)
		if err != nil || len(plan.Files) != 1 || plan.Files[0].MD5 != nil {
			t.Fatalf("%s: %+v, %v", location, plan, err)
		}
		body, err := s.Read(t.Context(), plan.Files[0], 0, 2)
		if err != nil {
			t.Fatalf("%s: %v", location, err)
		}
		if b, err := io.ReadAll(body); string(b) != "{}" || err != nil {
			t.Errorf("%s: %q, %v", location, b, err)
		}
		body.Close()
	}
	want := []string{"GET /abc/one", "GET /abc/one/m/one|a|b.json", "GET /abc/two", "GET /abc/two/m/two|a|b.json", "GET /abc/one", "GET /abc/one/m/one|a|b.json",
		"HEAD /abc/one/m/x.gguf", "GET /abc/one/m/x.gguf", "GET /abc/two", "GET /abc/two/m/two|a|b.json"}
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// TestRecordOfLocations: what is read from each location, whole or with a part that is not one.
func TestRecordOfLocations(t *testing.T) {
	long := strings.Repeat
	parts := []string{"", ".", "..", "a", "abc", "a1", "ab", "Abc", "a-c", "a--c", "-ac", "ac-", "a_c", "a b", "a%20b", "\u00fc", "a\x00", "a\x1fb", "a\x7fb", `a\b`, "a?b", "a#b", "a@b", "$root", "$web",
		"$logs", long("a", 24), long("a", 25), long("a", 63), long("a", 64), "a/b", "a//b", "%zz"}
	var out strings.Builder
	for _, form := range []string{"az://%s/ccc/x", "az://abc/%s", "az://abc/%s/x", "az://abc/ccc/%s", "az://abc/ccc/x/%s/", "https://%s.blob.core.windows.net/ccc/x",
		"https://abc.blob.core.windows.net/ccc/%s", "https://abc.%sblob.core.windows.net/ccc", "s3://%s/ccc"} {
		for _, part := range parts {
			p, err := parse(fmt.Sprintf(form, part))
			if err != nil {
				fmt.Fprintf(&out, "%s %.30q: %s\n", form, part, strings.ReplaceAll(sourcetest.Describe(err), fmt.Sprintf(form, part), "IT"))
			} else {
				fmt.Fprintf(&out, "%s %.30q: %q %q %q at %q\n", form, part, p.account, p.container, p.prefix, p.endpoint)
			}
		}
	}
	sourcetest.Compare(t, "locations.txt", out.String())
}
