package azure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
	"github.com/thaw-dev/thaw/testkit"
)

// TestLocations: the bounds of each part of a location, and how it is written.
func TestLocations(t *testing.T) {
	for in, fits := range map[string]bool{
		"az://abc/www": true, "az://ab/www": false, "az://" + strings.Repeat("a", 24) + "/www": true, "az://" + strings.Repeat("a", 25) + "/www": false,
		"az://abc/ww": false, "az://abc/" + strings.Repeat("w", 63): true, "az://abc/" + strings.Repeat("w", 64): false, "az://abc/w--w": false, "az://abc/-www": false,
		"az://abc/$web": true, "az://abc/$logs": false, "az://abc/www/a\x7f": false, "az://abc/www/.": false, "az://abc/www#x": false,
	} {
		if _, err := parse(in); (err == nil) != fits {
			t.Errorf("%s: %v", in, err)
		}
	}
	for in, want := range map[string]string{"az://abc/www/a/b/": "az://abc/www/a/b", "az://abc/www//": "az://abc/www", "az://abc/www//a": "az://abc/www/a",
		"https://abc.blob.core.windows.net/www/a/": "az://abc/www/a"} {
		if p, err := parse(in); err != nil || p.String() != want {
			t.Errorf("%s: %s, %v", in, p, err)
		}
	}
	_, err := parse("az://abc/www/../x")
	if e, ok := errors.AsType[*source.Error](err); !ok || e.Kind != source.BadSource || e.Detail == "" || !strings.Contains(e.Fix, "az://ACCOUNT") {
		t.Errorf("%+v", err)
	}
}

// TestConnectionErrors: a connection string that cannot be used is refused with its fault,
// and without a part of it.
func TestConnectionErrors(t *testing.T) {
	for in, want := range map[string]string{
		"CANARY": "KEY=VALUE", "AccountName=a1b": "neither AccountKey nor", "AccountKey=CANARY;BlobEndpoint=https://x.example": "AccountKey and no AccountName",
		"BlobEndpoint=ftp://CANARY;AccountName=a1b;AccountKey=eA==": "BlobEndpoint", "BlobEndpoint=https://x?CANARY=1;AccountName=a1b;AccountKey=eA==": "BlobEndpoint",
		"BlobEndpoint=https://;AccountName=a1b;AccountKey=eA==": "BlobEndpoint", "BlobEndpoint=%;AccountName=a1b;AccountKey=eA==": "BlobEndpoint",
	} {
		if _, err := parseConnection(in, ""); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", in, err)
		}
	}
	c, err := parseConnection(" ;accountname = a1b ; ACCOUNTKEY=eA== ;EndpointSuffix=core.chinacloudapi.cn;\n", "")
	if err != nil || c != (connection{endpoint: "https://a1b.blob.core.chinacloudapi.cn", account: "a1b", key: "eA=="}) {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = parseConnection("usedevelopmentstorage=TRUE", "x")
	if err != nil || c.account != developer || c.key != developerKey {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestFileOf: an item of a listing as a file.
func TestFileOf(t *testing.T) {
	p := blobLocation{account: "abc", container: "www", prefix: "a"}
	item := func(change func(b *container.BlobItem)) *container.BlobItem {
		b := &container.BlobItem{Name: to.Ptr("a/x.bin"), Properties: &container.BlobProperties{ContentLength: to.Ptr(int64(5)),
			ETag:       to.Ptr(azcore.ETag("0x1")),
			ContentMD5: make([]byte, 16)}}
		if change != nil {
			change(b)
		}
		return b
	}
	f, ok, err := fileOf(p, "a/", item(nil))
	if err != nil || !ok || f.Name != "x.bin" || f.Size != 5 || f.Version != `"0x1"` || f.Ref != "|abc|www|a/x.bin" || len(f.MD5) != 16 {
		t.Errorf("%+v, %v, %v", f, ok, err)
	}
	if f, _, _ := fileOf(p, "a/", item(func(b *container.BlobItem) { b.Properties.ContentMD5 = make([]byte, 15) })); f.MD5 != nil {
		t.Errorf("a digest of 15 bytes: %+v", f)
	}
	if f, ok, err := fileOf(p, "a/", nil); ok || source.KindOf(err) != source.Malformed {
		t.Errorf("no item: %+v, %v, %v", f, ok, err)
	}
	for name, change := range map[string]func(b *container.BlobItem){
		"no name":       func(b *container.BlobItem) { b.Name = nil },
		"no properties": func(b *container.BlobItem) { b.Properties = nil },
		"no size":       func(b *container.BlobItem) { b.Properties.ContentLength = nil },
		"no ETag":       func(b *container.BlobItem) { b.Properties.ETag = nil },
		"elsewhere":     func(b *container.BlobItem) { b.Name = to.Ptr("b/x.bin") },
	} {
		if f, ok, err := fileOf(p, "a/", item(change)); ok || source.KindOf(err) != source.Malformed {
			t.Errorf("%s: %+v, %v, %v", name, f, ok, err)
		}
	}
	for name, change := range map[string]func(b *container.BlobItem){
		"a marker":       func(b *container.BlobItem) { b.Metadata = map[string]*string{"Hdi_IsFolder": to.Ptr("true")} },
		"a directory":    func(b *container.BlobItem) { b.Properties.ResourceType = to.Ptr("directory") },
		"the folder":     func(b *container.BlobItem) { b.Name = to.Ptr("a/") },
		"another folder": func(b *container.BlobItem) { b.Name = to.Ptr("a/sub/") },
	} {
		if f, ok, err := fileOf(p, "a/", item(change)); ok || err != nil {
			t.Errorf("%s: %+v, %v, %v", name, f, ok, err)
		}
	}
	for name, change := range map[string]func(b *container.BlobItem){
		"not a marker": func(b *container.BlobItem) {
			b.Metadata = map[string]*string{"hdi_isfolder": to.Ptr("false"), "x": nil, "y": to.Ptr("true")}
		},
		"a marker of nothing": func(b *container.BlobItem) { b.Metadata = map[string]*string{"hdi_isfolder": nil} },
		"a file":              func(b *container.BlobItem) { b.Properties.ResourceType = to.Ptr("file") },
	} {
		if f, ok, err := fileOf(p, "a/", item(change)); !ok || err != nil {
			t.Errorf("%s: %+v, %v, %v", name, f, ok, err)
		}
	}
	s := New(Options{Getenv: os.Getenv})
	if _, err := s.Read(t.Context(), source.File{Name: "x", Ref: "a|b|c"}, 0, 1); source.KindOf(err) != source.BadSource {
		t.Error(err)
	}
}

// TestServiceMessage: the message of a refusal, in one line, bounded, and never one that
// repeats a credential.
func TestServiceMessage(t *testing.T) {
	at, err := url.Parse("https://abc.blob.core.windows.net/www?sig=c2lnbmF0dXJl%3D")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 500)
	for message, want := range map[string]string{
		"The blob is gone.\nRequestId:1\nTime:2": "The blob is gone", " a\tb ": "a b", long: long, long + "y": long + "…", "": "", "of sig=x": "", "of c2lnbmF0dXJl=": "",
		"of c2lnbmF0dXJl%3D": "", "of SIGNED": "", "of abc": "of abc",
	} {
		r := &http.Response{StatusCode: 403, Body: io.NopCloser(strings.NewReader("\ufeff<Error><Message>" + message + "</Message></Error>")),
			Request: &http.Request{URL: at, Header: http.Header{"Authorization": {"SharedKey abc:SIGNED"}}}}
		if got := httpsource.Words(r); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
	for detail, want := range map[string]string{
		"Signature not valid in the specified time frame: Start [a] - Expiry [b] - Current [c]": "no: Signature not valid in the specified time frame: Start [a] - Expiry [b] - Current [c]",
		"Signature did not match. String to sign used was r\n":                                  "no", "The MAC signature 'SIGNED' is not the same": "no", "": "no",
	} {
		r := &http.Response{StatusCode: 403, Request: &http.Request{URL: at, Header: http.Header{"Authorization": {"SharedKey abc:SIGNED"}}},
			Body: io.NopCloser(strings.NewReader("<Error><Message>no.</Message><AuthenticationErrorDetail>" + detail +
				"</AuthenticationErrorDetail></Error>"))}
		if got := httpsource.Words(r); got != want {
			t.Errorf("%q: %q, want %q", detail, got, want)
		}
	}
}

// TestNoIdentity: which errors mean that this machine has no identity.
func TestNoIdentity(t *testing.T) {
	for _, x := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {&azidentity.AuthenticationFailedError{}, true}, {fmt.Errorf("x: %w", &azidentity.AuthenticationRequiredError{}), true},
		{errors.New("DefaultAzureCredential: failed to acquire a token"), true}, {errors.New("no route"), false},
		{fmt.Errorf("DefaultAzureCredential: %w", context.Canceled), false}, {fmt.Errorf("DefaultAzureCredential: %w", context.DeadlineExceeded), false},
	} {
		if x.err != nil && strings.Contains(fmt.Sprintf("%T", x.err), "AuthenticationFailed") {
			if !noIdentity(x.err) {
				t.Error("AuthenticationFailedError")
			}
			continue
		}
		if got := noIdentity(x.err); got != x.want {
			t.Errorf("%T: %v", x.err, got)
		}
	}
}

// TestExpiredSAS: a refusal says that the SAS has expired, when, and of which variable it is.
func TestExpiredSAS(t *testing.T) {
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ms-Error-Code", "AuthenticationFailed")
		w.WriteHeader(http.StatusForbidden)
	}))
	for ends, want := range map[string]string{
		"2023-11-17T17:23:00Z": "which expired at 2023-11-17T17:23:00Z", "2023-11-17T17:23Z": "which expired at 2023-11-17T17:23:00Z",
		"2023-11-17": "which expired at 2023-11-17T00:00:00Z", "2999-01-01T00:00:00Z": "", "": "",
	} {
		s := New(Options{Endpoint: srv.URL, Getenv: func(name string) string {
			return map[string]string{"AZURE_STORAGE_ACCOUNT": "abc", "AZURE_STORAGE_SAS_TOKEN": "sp=rl&sig=x&se=" + ends}[name]
		}})
		t.Cleanup(s.Close)
		_, err := s.Plan(t.Context(), "az://abc/www/m", nil)
		if err == nil || !strings.Contains(err.Error(), "the SAS of AZURE_STORAGE_SAS_TOKEN, "+want) && want != "" ||
			want == "" && (strings.Contains(err.Error(), "expired at") || strings.Contains(err.Error(), "it has sp=")) ||
			!strings.Contains(err.Error(), "put it in AZURE_STORAGE_SAS_TOKEN") {
			t.Errorf("%s: %v", ends, err)
		}
	}
	s := New(Options{Endpoint: srv.URL, Getenv: func(name string) string {
		return map[string]string{"AZURE_STORAGE_ACCOUNT": "abc", "AZURE_STORAGE_SAS_TOKEN": "sp=r&sig=x"}[name]
	}})
	t.Cleanup(s.Close)
	if _, err := s.Plan(t.Context(), "az://abc/www/m", nil); err == nil || !strings.Contains(err.Error(), "(it has sp=r: make a SAS for this container with read and list (sp=rl)") {
		t.Error(err)
	}
}

// TestListings: markers of folders are no files, a listing has its bound, and a blob without
// length or version is none.
func TestListings(t *testing.T) {
	blobs, fields := 0, []string(nil)
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			for i := 0; i < len(fields); i += 2 {
				w.Header().Set(fields[i], fields[i+1])
			}
			return
		}
		item := func(name string) {
			fmt.Fprintf(w, "<Blob><Name>m/%s</Name><Properties><Etag>1</Etag><Content-Length>2</Content-Length></Properties></Blob>", name)
		}
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, "<EnumerationResults><Blobs>")
		item("")
		for i := range blobs {
			item(fmt.Sprint(i))
		}
		item("sub/")
		fmt.Fprint(w, "</Blobs></EnumerationResults>")
	}))
	s := New(Options{Endpoint: srv.URL, Getenv: func(name string) string {
		return map[string]string{"AZURE_STORAGE_ACCOUNT": "abc", "AZURE_STORAGE_SAS_TOKEN": "sig=x"}[name]
	}})
	t.Cleanup(s.Close)
	for n, want := range map[int]source.Kind{0: source.NotFound, 2: "", maxBlobs: "", maxBlobs + 1: source.Refused} {
		blobs = n
		if plan, err := s.Plan(t.Context(), "az://abc/www/m", nil); source.KindOf(err) != want || want == "" && len(plan.Files) != n {
			t.Errorf("%d blobs: %d, %v", n, len(plan.Files), err)
		}
	}
	for _, fields = range [][]string{{"Content-Length", "2"}, {"ETag", `"1"`, "Transfer-Encoding", "chunked"}, {"ETag", `"1"`, "Content-Length", "2"}} {
		plan, err := s.Plan(t.Context(), "az://abc/www/m.gguf", nil)
		if whole := len(fields) == 4 && fields[3] == "2"; whole != (err == nil) || !whole && source.KindOf(err) != source.Malformed {
			t.Errorf("%q: %+v, %v", fields, plan, err)
		}
	}
	before, _ := parse("az://abc/www/m")
	if first, _ := s.accessTo(before); first == nil {
		t.Error("no access")
	} else if again, _ := s.accessTo(before); again != first {
		t.Error("a container has a second client")
	}
}
