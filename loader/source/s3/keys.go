package s3

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

const howTo = "set AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY or AWS_PROFILE, give this machine a role, or set THAW_S3_ANONYMOUS=true " +
	"for a public bucket"

// keys is the credential chain, asked again when its credentials expire.
type keys struct {
	http  *http.Client
	chain *credentials.Credentials

	mu     sync.Mutex // held while a credential is fetched: one fetch serves all
	from   string
	none   string // from, where there are no credentials
	why    string // the role gave none
	static credentials.Value
	until  time.Time
}

// credentialLifetime bounds the use of credentials without an end: profiles change.
const credentialLifetime = time.Minute

func newKeys(env func(string) string) *keys {
	k := &keys{http: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		// The instance's metadata service is one hop away or absent.
		DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		ResponseHeaderTimeout: 5 * time.Second, IdleConnTimeout: 10 * time.Second, Proxy: proxyFor,
		TLSClientConfig: &tls.Config{RootCAs: httpsource.Roots()},
	}}}
	if isTrue(env("THAW_S3_ANONYMOUS")) {
		k.chain, k.from = credentials.NewStatic("", "", "", credentials.SignatureAnonymous), "nothing signed (THAW_S3_ANONYMOUS)"
		return k
	}
	if id, secret := env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		k.chain, k.from = credentials.NewStaticV4(id, secret, env("AWS_SESSION_TOKEN")), "the key in AWS_ACCESS_KEY_ID"
		return k
	}
	switch k.none = "no credentials"; {
	case env("AWS_ACCESS_KEY_ID") != env("AWS_SECRET_ACCESS_KEY"): // one is empty
		k.none += ": of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing"
	case env("AWS_WEB_IDENTITY_TOKEN_FILE") != "" || env("AWS_ROLE_ARN") != "":
		k.none += ": the file of AWS_WEB_IDENTITY_TOKEN_FILE gave none for the role of AWS_ROLE_ARN"
	default:
		k.none += profileWithoutKey(env)
	}
	providers := []credentials.Provider{&credentials.FileAWSCredentials{Filename: env("AWS_SHARED_CREDENTIALS_FILE"), Profile: env("AWS_PROFILE")}}
	if config := configFile(env); config != "" {
		providers = append(providers, &credentials.FileAWSCredentials{Filename: config, Profile: configSection(env)})
	}
	if !isTrue(env("AWS_EC2_METADATA_DISABLED")) || env("AWS_WEB_IDENTITY_TOKEN_FILE") != "" ||
		env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || env("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "" {
		iam := &credentials.IAM{Region: env("AWS_REGION")}
		iam.EKSIdentity.TokenFile, iam.EKSIdentity.RoleARN = env("AWS_WEB_IDENTITY_TOKEN_FILE"), env("AWS_ROLE_ARN")
		if iam.EKSIdentity.TokenFile != "" {
			iam.Endpoint = env("AWS_ENDPOINT_URL_STS")
		}
		providers = append(providers, &role{iam, k})
	}
	k.chain, k.from = credentials.NewChainCredentials(providers), "the profile or role of this machine"
	return k
}

// role is the identity of this machine. The chain drops why it gave no credentials.
type role struct {
	*credentials.IAM
	k *keys
}

// RetrieveWithCredContext is called with the lock of keys held.
func (r *role) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := r.IAM.RetrieveWithCredContext(cc)
	r.k.why = ""
	answer, answered := errors.AsType[credentials.ErrorResponse](err)
	file, unread := errors.AsType[*os.PathError](err)
	switch {
	case answered:
		r.k.why = ": " + answer.STSError.Code + ": " + httpsource.CleanWords(answer.STSError.Message, nil)
	case unread:
		r.k.why = fmt.Sprintf(": %q: %v", functions.Clip(file.Path), file.Err)
	case err != nil && r.IAM.EKSIdentity.TokenFile != "": // without the URL, which holds the token
		r.k.why = ": the server of tokens: " + httpsource.NoAnswer(err).Detail
	}
	return v, err
}

func isTrue(v string) bool { return strings.EqualFold(v, "true") || v == "1" }

// proxyFor returns the proxy for the token service, and none for the metadata service.
func proxyFor(req *http.Request) (*url.URL, error) {
	if ip := net.ParseIP(req.URL.Hostname()); ip != nil && (ip.IsLinkLocalUnicast() || ip.IsLoopback()) {
		return nil, nil
	}
	return http.ProxyFromEnvironment(req)
}

// get returns the credentials, empty ones if there are none. Concurrent callers wait
// for one fetch, which is bounded.
func (k *keys) get(ctx context.Context) (credentials.Value, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Now().Before(k.until) && !k.chain.IsExpired() {
		return k.static, nil
	}
	if ctx.Err() != nil {
		return credentials.Value{}, context.Cause(ctx)
	}
	v, err := k.chain.GetWithContext(&credentials.CredContext{Client: k.http})
	if err != nil {
		return credentials.Value{}, errors.New("no credentials") // the text may hold them
	}
	if v.AccessKeyID == "" {
		k.from = cmp.Or(k.none, "no credentials") + k.why
	}
	k.static, k.until = v, time.Now().Add(credentialLifetime)
	return v, nil
}

func (k *keys) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.until = time.Time{}
	k.chain.Expire()
}

// describe names the origin of the credentials.
func (k *keys) describe() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.from
}

func (k *keys) close() { k.http.CloseIdleConnections() }
