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

	mu   sync.Mutex // held while a credential is fetched: one fetch serves all
	from string
	none string // from, where there are no credentials
	why  string // the role gave none
	// refusal is what a service of credentials answered in place of them.
	refusal string
	static  credentials.Value
	until   time.Time
}

// credentialLifetime bounds the use of credentials without an end: profiles change.
const credentialLifetime = time.Minute

func newKeys(env func(string) string) *keys {
	k := &keys{}
	k.http = &http.Client{Timeout: 5 * time.Second, Transport: recordRefusals{k: k, Transport: &http.Transport{
		// The instance's metadata service is one hop away or absent.
		DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		ResponseHeaderTimeout: 5 * time.Second, IdleConnTimeout: 10 * time.Second, Proxy: httpsource.ProxyFor,
		TLSClientConfig: &tls.Config{RootCAs: httpsource.Roots()},
	}}}
	if isTrue(env("THAW_S3_ANONYMOUS")) {
		k.chain, k.from = credentials.NewStatic("", "", "", credentials.SignatureAnonymous), "nothing signed (THAW_S3_ANONYMOUS)"
		return k
	}
	if id, secret := env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		k.chain, k.from = credentials.NewStaticV4(id, secret, env("AWS_SESSION_TOKEN")), "the key in AWS_ACCESS_KEY_ID"
		if strings.HasPrefix(id, "ASIA") && env("AWS_SESSION_TOKEN") == "" {
			k.from += ", which is a temporary one and wants AWS_SESSION_TOKEN"
		}
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
	if other := httpsource.Misnamed(env, "AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "S3_ACCESS_KEY_ID", "S3_ACCESS_KEY", "MINIO_ACCESS_KEY",
		"MINIO_ROOT_USER"); other != "" {
		k.none += ": " + strings.TrimSuffix(other, "; ")
	}
	providers := []credentials.Provider{&credentials.FileAWSCredentials{Filename: env("AWS_SHARED_CREDENTIALS_FILE"), Profile: env("AWS_PROFILE")}}
	if config := configFile(env); config != "" {
		providers = append(providers, &credentials.FileAWSCredentials{Filename: config, Profile: configSection(env)})
	}
	container := env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || env("AWS_CONTAINER_CREDENTIALS_FULL_URI") != ""
	if !isTrue(env("AWS_EC2_METADATA_DISABLED")) || env("AWS_WEB_IDENTITY_TOKEN_FILE") != "" || container {
		iam := &credentials.IAM{Region: env("AWS_REGION")}
		if !container {
			iam.Endpoint = strings.TrimRight(env("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "/")
			if iam.Endpoint != "" && !strings.Contains(iam.Endpoint, "://") {
				iam.Endpoint = "http://" + iam.Endpoint
			}
		}
		iam.EKSIdentity.TokenFile, iam.EKSIdentity.RoleARN = env("AWS_WEB_IDENTITY_TOKEN_FILE"), env("AWS_ROLE_ARN")
		if iam.EKSIdentity.TokenFile != "" {
			iam.Endpoint = env("AWS_ENDPOINT_URL_STS")
		}
		providers = append(providers, &role{iam, k, container})
	}
	k.chain, k.from = credentials.NewChainCredentials(providers), "the profile or role of this machine"
	return k
}

// role is the identity of this machine. The chain drops why it gave no credentials.
type role struct {
	*credentials.IAM
	k         *keys
	container bool // its environment names a service of credentials
}

// RetrieveWithCredContext is called with the lock of keys held.
func (r *role) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	r.k.why, r.k.refusal = "", ""
	v, err := r.IAM.RetrieveWithCredContext(cc)
	if err != nil {
		r.k.why = ": " + r.describe(err)
	}
	return v, err
}

// describe returns why there are no credentials, in the words of the service that was to give them.
func (r *role) describe(err error) string {
	if answer, ok := errors.AsType[credentials.ErrorResponse](err); ok {
		return answer.STSError.Code + ": " + httpsource.CleanWords(answer.STSError.Message, nil)
	}
	if file, ok := errors.AsType[*os.PathError](err); ok {
		return fmt.Sprintf("%q: %v", functions.Clip(file.Path), file.Err)
	}
	why := cmp.Or(r.k.refusal, httpsource.CleanWords(err.Error(), nil))
	if _, ok := errors.AsType[*url.Error](err); ok { // without the URL, which may hold a token
		why = httpsource.NoAnswer(err).Detail
	}
	switch {
	case r.IAM.EKSIdentity.TokenFile != "":
		return "the server of tokens: " + why
	case r.container:
		return "the container's service of credentials: " + why
	case strings.Contains(why, " answered 404"):
		why += " (the instance has no role)"
	case strings.Contains(why, " answered 401") || strings.HasSuffix(why, httpsource.Late):
		why += " (in a container the instance's hop limit for metadata has to be 2)"
	}
	return "the metadata service: " + why
}

// recordRefusals is the transport of keys. The library drops what a refusal says.
type recordRefusals struct {
	*http.Transport
	k *keys
}

func (r recordRefusals) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := r.Transport.RoundTrip(req)
	if err == nil && answer.StatusCode != http.StatusOK {
		r.k.refusal = httpsource.Refusal(answer)
	}
	return answer, err
}

func isTrue(v string) bool { return strings.EqualFold(v, "true") || v == "1" }

// get returns the credentials, empty ones if there are none. Concurrent callers wait
// for one fetch, which is bounded.
func (k *keys) get(ctx context.Context) (credentials.Value, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// To the library those without an end have always expired.
	if time.Now().Before(k.until) && (k.static.Expiration.IsZero() || !k.chain.IsExpired()) {
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
