package azure

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

// version of the service that ranges are asked in.
const version = "2023-11-03"

// A signer completes a request with the right to make it.
type signer func(req *http.Request) error

// withKey signs with the account's key, as the service's documents tell
// ("Authorize with Shared Key").
func withKey(account string, key []byte) signer {
	return func(req *http.Request) error {
		req.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
		h := hmac.New(sha256.New, key)
		h.Write([]byte(toSign(account, req)))
		req.Header.Set("Authorization", "SharedKey "+account+":"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
		return nil
	}
}

// toSign is the text that a GET's signature is of.
func toSign(account string, req *http.Request) string {
	var b strings.Builder
	b.WriteString(req.Method)
	b.WriteByte('\n')
	for _, name := range []string{"Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date", "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"} {
		b.WriteString(req.Header.Get(name))
		b.WriteByte('\n')
	}
	var own []string
	for name, v := range req.Header {
		if low := strings.ToLower(name); strings.HasPrefix(low, "x-ms-") {
			own = append(own, low+":"+strings.TrimSpace(v[0])+"\n")
		}
	}
	slices.Sort(own)
	for _, line := range own {
		b.WriteString(line)
	}
	b.WriteString("/" + account + req.URL.EscapedPath())
	query := req.URL.Query()
	var names []string
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		v := slices.Sorted(slices.Values(query[name]))
		b.WriteString("\n" + strings.ToLower(name) + ":" + strings.Join(v, ","))
	}
	return b.String()
}

// withSAS puts the signature's fields into the query.
func withSAS(query string) signer {
	return func(req *http.Request) error {
		if req.URL.RawQuery != "" {
			req.URL.RawQuery += "&"
		}
		req.URL.RawQuery += query
		return nil
	}
}

// bearer keeps a token until shortly before its end.
type bearer struct {
	cred azcore.TokenCredential

	mu    sync.Mutex // held while a token is fetched: all wait for the one
	given azcore.AccessToken
}

const audience = "https://storage.azure.com/.default"

// tokenMargin is how long before its end a token is not used any more.
const tokenMargin = 5 * time.Minute

func (b *bearer) sign(req *http.Request) error {
	token, err := b.get(req.Context())
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return nil
}

func (b *bearer) get(ctx context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.given.Token == "" || time.Until(b.given.ExpiresOn) < tokenMargin {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		// Twice the longest single exchange of it.
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		t, err := b.cred.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{audience}})
		if err != nil {
			return "", err
		}
		b.given = t
	}
	return b.given.Token, nil
}
