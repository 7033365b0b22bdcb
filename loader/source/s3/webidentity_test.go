package s3

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
)

// TestNoCredentialsOfAWebIdentity: without credentials the error names the variables and the
// profile that were to give them.
func TestNoCredentialsOfAWebIdentity(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte("[profile sso]\nsso_session = work\n[profile chained]\nrole_arn = r\nsource_profile = default\n"+
		"[profile program]\ncredential_process = /opt/creds\n[profile bare]\nregion = eu-west-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "/nope", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"},
			"no credentials: the file of AWS_WEB_IDENTITY_TOKEN_FILE gave none for the role of AWS_ROLE_ARN"},
		{map[string]string{"AWS_ROLE_ARN": "x", "AWS_ACCESS_KEY_ID": "a"}, "no credentials: of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing"},
		{map[string]string{"AWS_ACCESS_KEY_ID": "ASIA1", "AWS_SECRET_ACCESS_KEY": "s"},
			"the key in AWS_ACCESS_KEY_ID, which is a temporary one and wants AWS_SESSION_TOKEN"},
		{map[string]string{"AWS_PROFILE": "p"}, `no credentials: the profile "p" of AWS_PROFILE is not there, or has no key`},
		{map[string]string{"AWS_PROFILE": "bare"}, `no credentials: the profile "bare" of AWS_PROFILE is not there, or has no key`},
		{map[string]string{"AWS_PROFILE": "sso"}, `no credentials: the profile "sso" has sso_session, which is not followed: run eval "$(aws configure export-credentials --format env)" before thaw`},
		{map[string]string{"AWS_PROFILE": "chained"}, `no credentials: the profile "chained" has role_arn, which is not followed: run eval "$(aws configure export-credentials --format env)" before thaw`},
		{map[string]string{"AWS_PROFILE": "program"}, `no credentials: the profile "program" has credential_process, which is not followed: run eval "$(aws configure export-credentials --format env)" before thaw`},
		{map[string]string{"S3_ACCESS_KEY_ID": "a"}, "no credentials: S3_ACCESS_KEY_ID is set, and AWS_ACCESS_KEY_ID is read"},
		{nil, "no credentials"},
	} {
		k := newKeys(func(name string) string {
			if name == "AWS_CONFIG_FILE" {
				return config
			}
			return c.env[name]
		})
		if k.none != c.want && k.from != c.want {
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
	service := testkit.Serve(t, http.NotFoundHandler())
	for _, c := range []struct{ file, sts, want string }{
		{"", service.URL, "with no credentials: the container's service of credentials: " + service.Listener.Addr().String() +
			" answered 404: 404 page not found (allow it"},
		{token, tokens.URL, "for the role of AWS_ROLE_ARN: AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity (allow it"},
		{token + ".none", tokens.URL, `token.none": no such file or directory (allow it`},
		{token, gone.URL, "AWS_ROLE_ARN: the server of tokens: " + strings.TrimPrefix(gone.URL, "http://") + ": dial: connect: connection refused (allow it"},
	} {
		role := "arn:aws:iam::1:role/r"
		if c.file == "" {
			role = ""
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", c.sts)
		} else {
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
		}
		s := New(Options{Getenv: environment("AWS_CONTAINER_CREDENTIALS_FULL_URI", os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
			"AWS_ENDPOINT_URL", bucket.URL, "AWS_ACCESS_KEY_ID", "", "AWS_SECRET_ACCESS_KEY", "",
			"AWS_ENDPOINT_URL_STS", c.sts, "AWS_SHARED_CREDENTIALS_FILE", "/dev/null", "AWS_CONFIG_FILE", "/dev/null",
			"AWS_WEB_IDENTITY_TOKEN_FILE", c.file, "AWS_ROLE_ARN", role)})
		_, err := s.Plan(t.Context(), "s3://abc/m", nil)
		if source.KindOf(err) != source.Denied || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%v\nlacks %s", err, c.want)
		}
		s.Close()
	}
}

// TestMetadataServiceWithoutRole: the error of a bucket that takes no anonymous requests says what
// the instance's metadata service answered in place of a role's credentials.
func TestMetadataServiceWithoutRole(t *testing.T) {
	for _, k := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(k, "") // the library looks here first
	}
	var signed atomic.Bool
	bucket := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		signed.Store(strings.Contains(r.Header.Get("Authorization"), "AKIDofRole/"))
		w.WriteHeader(http.StatusForbidden)
	}))
	const hops = " (in a container the instance's hop limit for metadata has to be 2)"
	role := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/role") {
			fmt.Fprint(w, `{"Code":"Success","AccessKeyId":"AKIDofRole","SecretAccessKey":"s","Token":"t","Expiration":"2999-01-01T00:00:00Z"}`)
			return
		}
		fmt.Fprint(w, "role")
	}
	for name, c := range map[string]struct {
		token, get http.HandlerFunc
		want       string // behind its host
	}{
		"silent, and 401 without a token": {func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, " answered 401" + hops},
		"400": {func(w http.ResponseWriter, r *http.Request) { http.Error(w, "Invalid ttl", http.StatusBadRequest) }, role,
			" answered 400: Invalid ttl (allow"},
		"turned off": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }, role, " answered 403 (allow"},
		"no role": {role, func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "<html>404 - Not Found</html>", http.StatusNotFound)
		}, " answered 404 (the instance has no role) (allow"},
		"the role's failure": {role, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/role") {
				fmt.Fprint(w, `{"Code":"AssumeRoleUnauthorizedAccess","Message":"EC2 cannot assume the role x."}`)
				return
			}
			role(w, r)
		}, "EC2 cannot assume the role x (allow"},
		"closes": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, role, ": the connection was closed (allow"},
		"a role": {role, role, "403, with the profile or role of this machine (allow"},
	} {
		service := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				c.token(w, r)
				return
			}
			c.get(w, r)
		}))
		endpoint := service.URL + "/"
		if name == "a role" { // as some write it
			endpoint = service.Listener.Addr().String()
		}
		s := New(Options{Getenv: environment("AWS_ENDPOINT_URL", bucket.URL, "AWS_ACCESS_KEY_ID", "", "AWS_SECRET_ACCESS_KEY", "",
			"AWS_SHARED_CREDENTIALS_FILE", "/dev/null", "AWS_CONFIG_FILE", "/dev/null", "AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)})
		_, err := s.Plan(t.Context(), "s3://abc/m", nil)
		want := c.want
		if strings.HasPrefix(want, " ") {
			want = "with no credentials: the metadata service: " + service.Listener.Addr().String() + want
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		if signed.Load() != (name == "a role") {
			t.Errorf("%s: signed %v", name, signed.Load())
		}
		s.Close()
	}
}
