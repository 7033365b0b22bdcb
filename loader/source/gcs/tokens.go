package gcs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

const howTo = "set GOOGLE_APPLICATION_CREDENTIALS to the path of a credentials file, run gcloud auth application-default login, " +
	"give this machine an identity, or set THAW_GCS_ANONYMOUS=true for a public bucket"

// Scopes: what a token lets its bearer do.
const (
	scopeRead  = "https://www.googleapis.com/auth/devstorage.read_only"
	scopeWrite = "https://www.googleapis.com/auth/devstorage.read_write"
)

// tokens fetches and caches tokens of one scope.
type tokens struct {
	env   func(string) string
	scope string
	http  *http.Client

	mu        sync.Mutex // held while a token is fetched: one fetch serves all
	anonymous bool       // nothing is shown
	origin    string
	file      oauth2.TokenSource // of a credentials file
	fileType  google.CredentialsType
	token     string
	until     time.Time
}

func newTokens(env func(string) string, emulated bool, scope string) *tokens {
	t := &tokens{env: env, scope: scope, http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		Proxy: httpsource.ProxyFor, DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		IdleConnTimeout: 10 * time.Second, TLSClientConfig: &tls.Config{RootCAs: httpsource.Roots()},
	}}}
	if v := env("THAW_GCS_ANONYMOUS"); emulated || strings.EqualFold(v, "true") || v == "1" {
		t.anonymous, t.origin = true, "nothing shown"
	}
	return t
}

// get returns the token, empty for anonymous access. Concurrent callers wait for one
// fetch, which is bounded.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.anonymous {
		return "", nil
	}
	if t.token != "" && time.Now().Before(t.until) {
		return t.token, nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if t.file == nil {
		if err := t.findCredentials(); err != nil {
			return "", err
		}
	}
	if t.file != nil {
		tok, err := t.file.Token()
		if err != nil {
			return "", errors.New(tokenFailure(err))
		}
		t.store(tok.AccessToken, time.Until(tok.Expiry))
		return t.token, nil
	}
	return t.fetchFromMetadata(ctx)
}

func (t *tokens) store(token string, lifetime time.Duration) {
	// A token without an end is fetched again soon.
	t.token, t.until = token, time.Now().Add(max(min(lifetime-time.Minute, time.Hour), 10*time.Second))
}

var kinds = []google.CredentialsType{google.ServiceAccount, google.AuthorizedUser, google.ExternalAccount, google.ExternalAccountAuthorizedUser, google.ImpersonatedServiceAccount}

func (t *tokens) findCredentials() error {
	name, how := t.env("GOOGLE_APPLICATION_CREDENTIALS"), "the credentials of GOOGLE_APPLICATION_CREDENTIALS"
	must := name != ""
	if !must {
		folder := t.env("CLOUDSDK_CONFIG")
		if folder == "" && t.env("HOME") != "" {
			folder = filepath.Join(t.env("HOME"), ".config", "gcloud")
		}
		name, how = filepath.Join(folder, "application_default_credentials.json"), "gcloud's application default credentials"
		if folder == "" {
			return nil
		}
	}
	raw, err := os.ReadFile(name)
	if err != nil && !must {
		return nil
	}
	t.origin = how
	switch {
	case err != nil && strings.ContainsAny(name, "{\n") || strings.HasPrefix(name, "ey") && len(name) > 200: // or base64
		return errors.New("it holds the credentials themselves: write them to a file as JSON, and set it to the path of that file")
	case err != nil:
		return fmt.Errorf("%q cannot be read: %w", functions.Clip(name), errors.Unwrap(err))
	}
	// The token source outlives the request that needed it first; its client
	// bounds every exchange.
	clientCtx := context.WithValue(context.Background(), oauth2.HTTPClient, t.http)
	var kind struct {
		Type           google.CredentialsType `json:"type"`
		Installed, Web any
	}
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	at := fmt.Sprintf("%q ", functions.Clip(name))
	if err := json.Unmarshal(raw, &kind); err != nil {
		why := "it has keys of another type"
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			why = fmt.Sprintf("line %d: %v", 1+bytes.Count(raw[:max(syntax.Offset-1, 0)], []byte("\n")), err)
		}
		return fmt.Errorf("%sis not the JSON of credentials, as gcloud or the console writes it (%s): decode it where it is base64; "+
			"line ends within private_key are written \\n", at, why)
	}
	switch {
	case kind.Installed != nil || kind.Web != nil:
		return errors.New(at + "is of an OAuth client, which has no rights of its own: make a key of a service account, or log in with " +
			"gcloud auth application-default login")
	case !slices.Contains(kinds, kind.Type):
		return fmt.Errorf("%shas the type %q, which is none of %q", at, functions.Clip(string(kind.Type)), kinds)
	}
	cred, err := google.CredentialsFromJSONWithType(clientCtx, raw, kind.Type, t.scope)
	if err != nil {
		return fmt.Errorf("%sof type %s is not complete: %s", at, kind.Type, httpsource.CleanWords(err.Error(), nil))
	}
	t.file, t.fileType = cred.TokenSource, kind.Type
	t.origin += fmt.Sprintf(" (%q, of type %s)", functions.Shorten(name, 300), kind.Type)
	return nil
}

// tokenFailure describes why there is no token: in the words of the server that was to give it,
// or of the library about its file. Anything else may hold what was sent.
func tokenFailure(err error) string {
	text := err.Error()
	if begin := strings.IndexByte(text, '{'); begin >= 0 {
		if words := httpsource.MessageOf([]byte(text[begin:])); words != "" {
			return words
		}
	}
	if r, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		if words := httpsource.CleanWords(cmp.Or(r.ErrorDescription, r.ErrorCode), nil); words != "" {
			return words
		}
		return fmt.Sprintf("the server of tokens answered %d", r.Response.StatusCode)
	}
	for _, mark := range []string{"oauth2/google/externalaccount: ", "oauth2/google: ", "google: ", "executable "} {
		if _, words, ok := strings.Cut(text, mark); ok {
			return httpsource.CleanWords(words, nil)
		}
	}
	if strings.Contains(text, "cannot fetch token: Post ") {
		return "the server of tokens cannot be reached" + httpsource.CleanWords(text[strings.LastIndex(text, `": `)+1:], nil)
	}
	return malformedKey
}

const malformedKey = "the private key is malformed"

// fetchFromMetadata asks the metadata server, one hop away; without one, access is
// anonymous.
func (t *tokens) fetchFromMetadata(ctx context.Context) (string, error) {
	host := cmp.Or(t.env("GCE_METADATA_HOST"), "169.254.169.254")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+host+"/computeMetadata/v1/instance/service-accounts/default/token?scopes="+t.scope, nil)
	if err != nil {
		return "", errors.New("GCE_METADATA_HOST is no host")
	}
	req.Header.Set("Metadata-Flavor", "Google")
	// Never through a proxy.
	direct := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, DisableKeepAlives: true}}
	t.origin = "the identity of this machine"
	r, err := direct.Do(req)
	if err != nil || r.Header.Get("Metadata-Flavor") != "Google" {
		t.anonymous, t.origin = true, "no credentials: the metadata server: "
		if err == nil {
			t.origin += httpsource.Refusal(r) + ", without Metadata-Flavor: Google"
			r.Body.Close()
		} else {
			t.origin += httpsource.NoAnswer(err).Detail
		}
		if other := httpsource.Misnamed(t.env, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS_JSON",
			"GCP_SERVICE_ACCOUNT_KEY"); other != "" {
			t.origin += ": " + strings.TrimSuffix(other, "; ")
		}
		return "", nil
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return "", errors.New("the metadata server: " + httpsource.Refusal(r))
	}
	var tok struct {
		Token     string `json:"access_token"`
		ExpiresIn int    `json:"expires_in"`
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil || json.Unmarshal(raw, &tok) != nil || tok.Token == "" {
		return "", fmt.Errorf("the metadata server %s answered 200 without a token", host)
	}
	t.store(tok.Token, time.Duration(tok.ExpiresIn)*time.Second)
	return t.token, nil
}

// reset makes the next request look for credentials again.
func (t *tokens) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.file, t.fileType, t.token = nil, "", ""
	if strings.HasPrefix(t.origin, "no credentials") {
		t.anonymous = false
	}
}

func (t *tokens) describe() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return cmp.Or(t.origin, "no credentials")
}

// credentialsType is the type of the credentials file in use; "" without one.
func (t *tokens) credentialsType() google.CredentialsType {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fileType
}

// typeFixes is what helps where credentials of a type give no token.
var typeFixes = map[google.CredentialsType]string{
	google.ServiceAccount:                "the key may be deleted, or this machine's clock wrong: set the clock, or make a new key of that service account",
	google.AuthorizedUser:                "log in again: gcloud auth application-default login",
	google.ImpersonatedServiceAccount:    "give the account that impersonates the role Service Account Token Creator, or log in again",
	google.ExternalAccount:               "check its credential_source, the provider, its audience and the role Workload Identity User",
	google.ExternalAccountAuthorizedUser: "log in again: gcloud auth application-default login",
}

func (t *tokens) close() { t.http.CloseIdleConnections() }
