package gcs

import (
	"bytes"
	"cmp"
	"context"
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
)

const howTo = "set GOOGLE_APPLICATION_CREDENTIALS, run gcloud auth application-default login, give this machine an identity, or set " +
	"THAW_GCS_ANONYMOUS=true for a public bucket"

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
	token     string
	until     time.Time
}

func newTokens(env func(string) string, emulated bool, scope string) *tokens {
	t := &tokens{env: env, scope: scope, http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		IdleConnTimeout: 10 * time.Second,
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
			return "", errors.New("the private key is malformed, or Google gives none for it") // without the cause, which may hold what was sent
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
	if err != nil {
		if must {
			t.origin = how
			return errors.New("no file that can be read has this name")
		}
		return nil
	}
	t.origin = how
	// The token source outlives the request that needed it first; its client
	// bounds every exchange.
	clientCtx := context.WithValue(context.Background(), oauth2.HTTPClient, t.http)
	var kind struct {
		Type google.CredentialsType `json:"type"`
	}
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	if json.Unmarshal(raw, &kind) != nil || !slices.Contains(kinds, kind.Type) {
		return errors.New("the file is not the JSON of credentials, as gcloud or the console writes it, with a type")
	}
	cred, err := google.CredentialsFromJSONWithType(clientCtx, raw, kind.Type, t.scope)
	if err != nil {
		return errors.New("the file is not the JSON of credentials, as gcloud or the console writes it, with a type")
	}
	t.file = cred.TokenSource
	return nil
}

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
		if err == nil {
			r.Body.Close()
		}
		t.anonymous, t.origin = true, "no credentials"
		return "", nil
	}
	defer r.Body.Close()
	var tok struct {
		Token     string `json:"access_token"`
		ExpiresIn int    `json:"expires_in"`
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil || r.StatusCode != http.StatusOK || json.Unmarshal(raw, &tok) != nil || tok.Token == "" {
		return "", fmt.Errorf("the metadata server answers %d", r.StatusCode)
	}
	t.store(tok.Token, time.Duration(tok.ExpiresIn)*time.Second)
	return t.token, nil
}

// reset makes the next request look for credentials again.
func (t *tokens) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.file, t.token = nil, ""
	if t.origin == "no credentials" {
		t.anonymous = false
	}
}

func (t *tokens) describe() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return cmp.Or(t.origin, "no credentials")
}

func (t *tokens) close() { t.http.CloseIdleConnections() }
