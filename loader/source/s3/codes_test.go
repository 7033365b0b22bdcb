package s3

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
	"github.com/thaw-dev/thaw/testkit"
)

// TestRefusalsNameAWayOut: each refusal of a bucket says what helps, by its code where that
// says more than the status.
func TestRefusalsNameAWayOut(t *testing.T) {
	s := New(Options{Getenv: os.Getenv})
	for _, c := range []struct {
		status int
		code   string
		kind   source.Kind
		want   string
	}{
		{403, "AllAccessDisabled", source.Denied, "access to the bucket is turned off"},
		{403, "AccessDenied", source.Denied, "kms:Decrypt; buckets whose requester pays are not read"},
		{400, "KMS.DisabledException", source.Denied, "enable it in KMS"},
		{400, "InvalidRequest", source.Refused, "SSE-C"},
		{405, "MethodNotAllowed", source.Refused, "no endpoint of S3's API"},
		{400, "IllegalLocationConstraintException", source.Refused, "set AWS_REGION"},
		{400, "RequestExpired", source.Denied, "check the credentials"},
		{403, "SecondLevelDomainForbidden", source.Denied, "(set THAW_S3_STYLE=virtual)"},
		{403, "PathStyleDomainForbidden", source.Denied, "(set THAW_S3_STYLE=virtual)"},
		{403, "InvalidArgument", source.Denied, "(check AWS_ENDPOINT_URL, AWS_REGION, the credentials"},
		{501, "NotImplemented", source.Unavailable, "lacks a part of S3's API: upgrade it"},
		{407, "", source.Denied, "the proxy asks for a login"},
		{400, "InvalidBucketName", source.Refused, "the bucket's name"},
		{400, "", source.Refused, "check AWS_ENDPOINT_URL"},
	} {
		r := &http.Response{StatusCode: c.status, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader("<Error><Code>" + c.code + "</Code></Error>"))}
		err := s.responseError(r, bucketLocation{Name: "b"}, "")
		if !strings.Contains(err.Error(), c.want) || source.KindOf(err) != c.kind {
			t.Errorf("%d %s: %v, kind %v\nlacks %s", c.status, c.code, err, source.KindOf(err), c.want)
		}
	}
}

// TestMessage: a refusal keeps the message of the server, such as one that names the right and
// the resource, but for one with a signature.
func TestMessage(t *testing.T) {
	s := New(Options{Getenv: os.Getenv})
	kms := "User: arn:aws:iam::1:user/x is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:eu-central-1:1:key/ab-12"
	for message, want := range map[string]string{
		kms: kms, kms + " because no identity-based policy allows the kms:Decrypt action": kms + " because no identity-based policy allows the kms:Decrypt action",
		kms + "?X-Amz-Signature=CANARY": "", "Access Denied.\nCANARY": "this machine: Access Denied (allow",
	} {
		r := &http.Response{StatusCode: 403, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(
			"<Error><Code>AccessDenied</Code><Message>" + message + "</Message></Error>"))}
		err := s.responseError(r, bucketLocation{Name: "b"}, "f").Error()
		if !strings.Contains(err, want) || strings.Contains(err, "CANARY") || strings.Contains(err, "User:") != strings.Contains(want, "User:") {
			t.Errorf("%s: %s", message, err)
		}
	}
}

// TestReasonOfOneFile: the answer to HEAD has no body, so the reason of its refusal is asked for
// by GET; and a region that only the body names is followed.
func TestReasonOfOneFile(t *testing.T) {
	body := "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting 'ap-south-1'</Message><Region>ap-south-1</Region></Error>"
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.Header.Get("Authorization"), "/ap-south-1/s3/"):
			w.Header().Set("ETag", `"v"`)
			w.Header().Set("Content-Length", "4")
		case r.Method == http.MethodHead:
			w.WriteHeader(http.StatusBadRequest)
		default:
			http.Error(w, body, http.StatusBadRequest)
		}
	}))
	s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", srv.URL)})
	defer s.Close()
	plan, err := s.Plan(t.Context(), "s3://abc/m/x.gguf", nil)
	if err != nil || len(plan.Files) != 1 {
		t.Errorf("%+v, %v", plan, err)
	}
	body = "<Error><Code>InvalidRegionName</Code><Message>must be one of: wnam, auto</Message></Error>"
	other := New(Options{Getenv: environment("AWS_ENDPOINT_URL", srv.URL)})
	defer other.Close()
	if _, err := other.Plan(t.Context(), "s3://abc/m/x.gguf", nil); err == nil || !strings.Contains(err.Error(), "must be one of: wnam, auto (check AWS") {
		t.Error(err)
	}
	nowhere := New(Options{Getenv: environment("AWS_REGION", "us")})
	defer nowhere.Close()
	e := nowhere.nameEndpoint(httpsource.Network(t.Context(), "s3://abc/m", "", errors.New("x")))
	if !strings.Contains(e.Error(), "(check AWS_REGION (us) and this machine's network)") {
		t.Error(e)
	}
}
