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
	of := "bytes 0-0/4"
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.Header.Get("Authorization"), "/ap-south-1/s3/") && r.Header.Get("Range") == "bytes=0-0":
			w.Header().Set("ETag", `"v"`)
			w.Header().Set("Content-Range", of)
			w.WriteHeader(http.StatusPartialContent)
			io.WriteString(w, "x")
		case r.Method == http.MethodHead:
			w.WriteHeader(http.StatusBadRequest)
		default:
			http.Error(w, body, http.StatusBadRequest)
		}
	}))
	s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", srv.URL)})
	defer s.Close()
	plan, err := s.Plan(t.Context(), "s3://abc/m/x.gguf", nil)
	if err != nil || len(plan.Files) != 1 || plan.Files[0].Size != 4 {
		t.Errorf("%+v, %v", plan, err)
	}
	for _, of = range []string{"bytes 0-0/*", ""} {
		if _, err := s.Plan(t.Context(), "s3://abc/m/x.gguf", nil); source.KindOf(err) != source.Malformed {
			t.Errorf("a range of %q: %v", of, err)
		}
	}
	body = "<Error><Code>InvalidRegionName</Code><Message>must be one of: wnam, auto</Message></Error>"
	other := New(Options{Getenv: environment("AWS_ENDPOINT_URL", srv.URL)})
	defer other.Close()
	if _, err := other.Plan(t.Context(), "s3://abc/m/x.gguf", nil); err == nil || !strings.Contains(err.Error(), "must be one of: wnam, auto (check AWS") {
		t.Error(err)
	}
	nowhere := New(Options{Getenv: environment("AWS_REGION", "us", "S3_ENDPOINT", "http://minio:9000")})
	defer nowhere.Close()
	e := nowhere.nameEndpoint(httpsource.Network(t.Context(), "s3://abc/m", "", errors.New("x")))
	if !strings.Contains(e.Error(), "(S3_ENDPOINT is set, and AWS_ENDPOINT_URL is read; check AWS_REGION (us) and this machine's network)") {
		t.Error(e)
	}
}

// TestRefusalsOfOtherServers: what helps against a refusal that says more than its code, or that is
// of a server which is not Amazon's.
func TestRefusalsOfOtherServers(t *testing.T) {
	for _, c := range []struct {
		status              int
		location, body, env string
		want                string
	}{
		{403, "", "<Error><Code>AccessDenied</Code><Message>User: a is not authorized to perform: s3:ListBucket " +
			"with an explicit deny in a VPC endpoint policy</Message></Error>", "",
			"endpoint policy (change the policy that denies it: no other right outweighs that)"},
		{403, "", "<Error><Code>AccessDenied</Code><Message>Class B cap exceeded. See the Caps &amp; Alerts page.</Message></Error>", "",
			"See the Caps & Alerts page (where a right is missing, allow it s3:GetObject"},
		{403, "", "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>", "", ": Access Denied (allow it s3:GetObject"},
		{403, "", "<Error><Code>SignatureDoesNotMatch</Code></Error>", "", "(check the credentials; set AWS_ACCESS_KEY_ID"},
		{403, "", "<Error><Code>SignatureDoesNotMatch</Code></Error>", "http://h/minio", "(check the credentials; AWS_ENDPOINT_URL has to name the server and region that gave them, and a proxy before it to keep Host and path"},
		{403, "", "<Error><Code>InvalidAccessKeyId</Code></Error>", "http://h", "(check the credentials; AWS_ENDPOINT_URL has to name the server"},
		{302, "https://minio.example/x?sig=CANARY", "", "http://h", "302: a redirect that is not followed, to https://minio.example (set AWS_ENDPOINT_URL to that server, if it is meant)"},
		{301, "", "<Error><Code>PermanentRedirect</Code></Error>", "http://h", `301 "PermanentRedirect" (the bucket is in another region: set AWS_REGION)`},
	} {
		s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", c.env)})
		r := &http.Response{StatusCode: c.status, Header: http.Header{"Location": {c.location}}, Request: &http.Request{},
			Body: io.NopCloser(strings.NewReader(c.body))}
		if c.location == "" {
			r.Header.Del("Location")
		}
		err := s.responseError(r, bucketLocation{Scheme: "s3", Name: "abc"}, "")
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%v\nlacks %s", err, c.want)
		}
		s.Close()
	}
	for _, name := range []string{"arn:aws:s3:us-west-2:1:accesspoint", "TENANT:dev-bucket"} {
		_, err := parse("s3://" + name + "/x/p")
		if err == nil || !strings.Contains(err.Error(), `"`+name+`" is an ARN, or names a tenant (name the bucket alone`) ||
			!strings.Contains(err.Error(), "the alias of an access point: s3://ALIAS/PREFIX") {
			t.Error(err)
		}
	}
}
