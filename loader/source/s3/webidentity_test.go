package s3

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
)

// TestNoCredentialsOfAWebIdentity: without credentials the error names the variables and the
// profile that were to give them.
func TestNoCredentialsOfAWebIdentity(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte("[profile sso]\nsso_session = work\n[profile chained]\nrole_arn = r\nsource_profile = default\n"+
		"[profile bare]\nregion = eu-west-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "/nope", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"},
			"no credentials: the file of AWS_WEB_IDENTITY_TOKEN_FILE gave none for the role of AWS_ROLE_ARN"},
		{map[string]string{"AWS_ROLE_ARN": "x", "AWS_ACCESS_KEY_ID": "a"}, "no credentials: of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing"},
		{map[string]string{"AWS_PROFILE": "p"}, `no credentials: the profile "p" of AWS_PROFILE is not there, or has no key`},
		{map[string]string{"AWS_PROFILE": "bare"}, `no credentials: the profile "bare" of AWS_PROFILE is not there, or has no key`},
		{map[string]string{"AWS_PROFILE": "sso"}, `no credentials: the profile "sso" has sso_session, which is not followed: run eval "$(aws configure export-credentials --format env)" before thaw`},
		{map[string]string{"AWS_PROFILE": "chained"}, `no credentials: the profile "chained" has role_arn, which is not followed: run eval "$(aws configure export-credentials --format env)" before thaw`},
		{nil, "no credentials"},
	} {
		k := newKeys(func(name string) string {
			if name == "AWS_CONFIG_FILE" {
				return config
			}
			return c.env[name]
		})
		if k.none != c.want {
			t.Errorf("%v: %s", c.env, k.none)
		}
		k.close()
	}
}

// TestRefusedWebIdentity: the error of a bucket that takes no anonymous requests says why the
// role gave no credentials, in the words of the server of tokens, and never shows the token.
func TestRefusedWebIdentity(t *testing.T) {
	for _, k := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_REGION",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(k, "") // the library looks here first
	}
	bucket := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	tokens := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>AccessDenied</Code>`+
			`<Message>Not authorized to perform sts:AssumeRoleWithWebIdentity</Message></Error></ErrorResponse>`, http.StatusForbidden)
	}))
	gone := testkit.Serve(t, http.NotFoundHandler())
	gone.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("CANARY"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, sts, want string }{
		{token, tokens.URL, "for the role of AWS_ROLE_ARN: AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity (allow it"},
		{token + ".none", tokens.URL, `token.none": no such file or directory (allow it`},
		{token, gone.URL, "AWS_ROLE_ARN: the server of tokens: " + strings.TrimPrefix(gone.URL, "http://") + ": dial: connect: connection refused (allow it"},
	} {
		s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", bucket.URL, "AWS_ACCESS_KEY_ID", "", "AWS_SECRET_ACCESS_KEY", "",
			"AWS_ENDPOINT_URL_STS", c.sts, "AWS_SHARED_CREDENTIALS_FILE", "/none", "AWS_CONFIG_FILE", "/none",
			"AWS_WEB_IDENTITY_TOKEN_FILE", c.file, "AWS_ROLE_ARN", "arn:aws:iam::1:role/r")})
		_, err := s.Plan(t.Context(), "s3://abc/m", nil)
		if source.KindOf(err) != source.Denied || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%v\nlacks %s", err, c.want)
		}
		s.Close()
	}
}
