package azure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// containerAccess is a client for one container, and where its credential comes from.
type containerAccess struct {
	client  *container.Client
	support *endpointSupport
	how     string
	fix     string    // what to do if access is denied
	ends    time.Time // of a SAS; zero: unknown
	// setUp is how to give this machine a credential, where it has none.
	setUp string
}

const (
	connectionVariable = "AZURE_STORAGE_CONNECTION_STRING"
	keyVariable        = "AZURE_STORAGE_KEY"
	sasVariable        = "AZURE_STORAGE_SAS_TOKEN"
)

const howTo = "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or give " +
	"this machine an identity (workload identity, managed identity, az login; of several identities AZURE_CLIENT_ID names one)"

// newAccess finds the credential for a place and makes a client. A key or a SAS is used
// only for its own account: it is never sent to another one that a source names.
func (s *Source) newAccess(p blobLocation) (*containerAccess, error) {
	env := s.o.Getenv
	opts := &container.ClientOptions{ClientOptions: policy.ClientOptions{
		Transport:       s.http,
		Retry:           policy.RetryOptions{MaxRetries: -1}, // the loader's
		Telemetry:       policy.TelemetryOptions{ApplicationID: "thaw"},
		PerCallPolicies: []policy.Policy{headerPolicy{}},
	}}
	endpoint := p.endpoint
	if s.o.Endpoint != "" {
		endpoint = s.o.Endpoint
	} else if endpoint == "" {
		endpoint = "https://" + p.account + ".blob.core.windows.net"
	}
	bad := func(name, problem, fix string) error {
		// Never the value, nor an error text made of it.
		return &source.Error{Kind: source.Denied, Source: p.String(), Detail: name + " " + problem, Fix: fix}
	}
	account := env("AZURE_STORAGE_ACCOUNT")
	if strings.Contains(account, ".") { // its address
		if u, err := url.Parse("https://" + strings.TrimPrefix(account, "https://")); err == nil {
			account = accountOf(u)
		}
	}
	var others []string // variables that hold credentials of other accounts
	if raw := env(connectionVariable); raw != "" {
		c, err := parseConnection(raw, account)
		switch {
		case err != nil:
			return nil, bad(connectionVariable, err.Error(), howTo)
		case c.account == "":
			return nil, bad(connectionVariable, "has a SAS of an account that it does not name",
				"add AccountName="+p.account+" to it if the SAS is of that account")
		case c.account != p.account:
			others = append(others, connectionVariable)
		case c.key != "":
			return s.accessWithKey(p, c.endpoint, c.account, c.key, connectionVariable, opts)
		default:
			return s.accessWithSAS(p, c.endpoint, c.sas, connectionVariable, opts)
		}
	}
	if key := env(keyVariable); key != "" {
		if account == p.account {
			return s.accessWithKey(p, endpoint, account, key, keyVariable, opts)
		}
		others = append(others, keyVariable)
	}
	if sas := env(sasVariable); sas != "" {
		switch account {
		case p.account:
			return s.accessWithSAS(p, endpoint, sas, sasVariable, opts)
		case "":
			return nil, bad(sasVariable, "is set without AZURE_STORAGE_ACCOUNT, so the account of the SAS is not known",
				"set AZURE_STORAGE_ACCOUNT="+p.account+" if the SAS is of that account, or unset "+sasVariable)
		}
		others = append(others, sasVariable)
	}
	return s.accessWithIdentity(p, endpoint, others, opts)
}

// accessWithIdentity makes a client with an identity of this machine. others are the
// variables that were left out because their credentials are of other accounts.
func (s *Source) accessWithIdentity(p blobLocation, endpoint string, others []string, opts *container.ClientOptions) (*containerAccess,
	error) {
	fix := httpsource.Misnamed(s.o.Getenv, keyVariable, "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY") +
		httpsource.Misnamed(s.o.Getenv, "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME") + howTo
	if len(others) > 0 {
		fix = strings.Join(others, " and ") + ": not used, of another account than " + p.account + "; " + fix
	}
	if file := s.o.Getenv("AZURE_FEDERATED_TOKEN_FILE"); file != "" { // azidentity does not say this
		if _, err := os.Stat(file); err != nil {
			return nil, source.Fail(source.Denied, fmt.Sprintf("AZURE_FEDERATED_TOKEN_FILE names %q: %v", functions.Clip(file), errors.Unwrap(err)),
				"let the webhook of workload identity mount it, or unset it; "+fix).At(p.String(), "")
		}
	}
	cred, err := s.identity()
	if err != nil {
		return nil, &source.Error{Kind: source.Denied, Source: p.String(), Detail: "there is no credential for account " + p.account, Fix: fix}
	}
	client, err := container.NewClient(containerURL(endpoint, p), cred, opts)
	return s.access(p, endpoint, client, err, containerAccess{how: "the identity of this machine",
		fix: "give it the role Storage Blob Data Reader on the container; or " + fix, setUp: fix})
}

// identity is azidentity's default chain, made once: it caches its tokens.
func (s *Source) identity() (azcore.TokenCredential, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cred == nil {
		cred, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
			ClientOptions: policy.ClientOptions{Transport: s.http},
			// A configured authority is trusted: a private cloud is not in the
			// public one's directory of clouds.
			DisableInstanceDiscovery: s.o.Getenv("AZURE_AUTHORITY_HOST") != "",
		})
		if err != nil {
			return nil, err
		}
		s.cred = cred
	}
	return s.cred, nil
}

func (s *Source) accessWithKey(p blobLocation, endpoint, account, key, how string, opts *container.ClientOptions) (*containerAccess,
	error) {
	cred, err := container.NewSharedKeyCredential(account, key)
	if err != nil {
		return nil, &source.Error{Kind: source.Denied, Source: p.String(), Detail: "the key in " + how + " is not base64", Fix: howTo}
	}
	client, err := container.NewClientWithSharedKeyCredential(containerURL(endpoint, p), cred, opts)
	return s.access(p, endpoint, client, err, containerAccess{how: "the account key of " + how,
		fix: "check that the key in " + how + " is the account's, and that this machine's clock is right"})
}

func (s *Source) accessWithSAS(p blobLocation, endpoint, sas, how string, opts *container.ClientOptions) (*containerAccess, error) {
	// A + that is not escaped is part of the signature: no value of a SAS has a blank.
	if _, query, ok := strings.Cut(sas, "?"); ok { // of the whole address, as the portal shows it
		sas = query
	}
	sas = strings.ReplaceAll(sas, "+", "%2B")
	fields, err := url.ParseQuery(sas)
	if err != nil || !strings.Contains(sas, "sig=") {
		return nil, source.Fail(source.Denied, "the SAS in "+how+" is not one: it has no sig=", howTo).At(p.String(), "")
	}
	client, err := container.NewClientWithNoCredential(containerURL(endpoint, p)+"?"+sas, opts)
	var ends time.Time
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z", time.DateOnly} {
		if t, err := time.Parse(layout, fields.Get("se")); err == nil {
			ends = t
		}
	}
	lacks := ""
	if sp := fields.Get("sp"); sp != "" && (!strings.Contains(sp, "r") || !strings.Contains(sp, "l")) {
		lacks = fmt.Sprintf("it has sp=%.20s: ", sp)
	}
	return s.access(p, endpoint, client, err, containerAccess{how: "the SAS of " + how, ends: ends,
		fix: lacks + "make a SAS for this container with read and list (sp=rl) that has not expired, and put it in " + how})
}

// access completes an access with the client that was made for it; err is of that.
func (s *Source) access(p blobLocation, endpoint string, client *container.Client, err error, a containerAccess) (*containerAccess, error) {
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, Source: p.String(), Detail: "no client can be made for this endpoint"}
	}
	a.client, a.support = client, s.supportOf(endpoint)
	return &a, nil
}

func containerURL(endpoint string, p blobLocation) string {
	return strings.TrimSuffix(endpoint, "/") + "/" + url.PathEscape(p.container)
}

type connection struct{ endpoint, account, key, sas string }

// developer is the account that every Azurite has, with its well-known key
// (UseDevelopmentStorage=true stands for it).
const (
	developer    = "devstoreaccount1"
	developerKey = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// parseConnection reads a storage connection string. account is that of the environment:
// a SAS whose string names none is of it. Its errors never repeat any of the string.
func parseConnection(raw, account string) (connection, error) {
	kv := make(map[string]string)
	for field := range strings.SplitSeq(strings.Trim(raw, "; \t\n"), ";") {
		k, v, ok := strings.Cut(field, "=")
		if !ok {
			return connection{}, errors.New("is not a list of KEY=VALUE separated by ;")
		}
		kv[strings.ToLower(strings.TrimSpace(k))] = strings.TrimSpace(v)
	}
	if strings.EqualFold(kv["usedevelopmentstorage"], "true") {
		return connection{endpoint: "http://127.0.0.1:10000/" + developer, account: developer, key: developerKey}, nil
	}
	c := connection{endpoint: kv["blobendpoint"], account: kv["accountname"], key: kv["accountkey"], sas: kv["sharedaccesssignature"]}
	if c.endpoint == "" {
		if c.account == "" {
			return c, errors.New("has neither BlobEndpoint nor AccountName")
		}
		protocol, suffix := kv["defaultendpointsprotocol"], kv["endpointsuffix"]
		protocol = cmp.Or(protocol, "https")
		suffix = cmp.Or(suffix, "core.windows.net")
		c.endpoint = fmt.Sprintf("%s://%s.blob.%s", protocol, c.account, suffix)
	}
	u, err := url.Parse(c.endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return c, errors.New("has a BlobEndpoint that is not an http or https URL")
	}
	c.account = cmp.Or(c.account, accountOf(u))
	switch {
	case c.key != "" && c.account == "":
		return c, errors.New("has an AccountKey and no AccountName")
	case c.key == "" && c.sas == "":
		return c, errors.New("has neither AccountKey nor SharedAccessSignature")
	}
	if c.account == "" { // the SAS of a custom domain
		c.account = account
	}
	return c, nil
}

// accountOf returns the account that an endpoint names, by its host, or by its path as
// emulators do; "" for a custom domain.
func accountOf(endpoint *url.URL) string {
	if m := blobHost.FindStringSubmatch(endpoint.Host); m != nil {
		return m[1]
	}
	if name := strings.Trim(endpoint.Path, "/"); accountName.MatchString(name) {
		return name
	}
	return ""
}

// noIdentity reports whether err means that no identity was found, before the account
// was asked.
func noIdentity(err error) bool {
	if _, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*azidentity.AuthenticationRequiredError](err); ok {
		return true
	}
	// The chain's error for no configured member is not exported.
	return err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
		strings.Contains(err.Error(), "DefaultAzureCredential")
}
