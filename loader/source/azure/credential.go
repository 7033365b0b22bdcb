package azure

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/thaw-dev/thaw/loader/source"
)

// containerAccess is a client for one container, and where its credential comes from.
type containerAccess struct {
	client *container.Client
	how    string
	fix    string // what to do if access is denied
}

const howTo = "set AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY, or AZURE_STORAGE_SAS_TOKEN, or give this machine an identity (workload identity, managed identity, az login)"

// newAccess finds the credential for a place and makes a client.
func (s *Source) newAccess(p blobLocation) (*containerAccess, error) {
	env := s.o.Getenv
	opts := &container.ClientOptions{ClientOptions: policy.ClientOptions{
		Transport: s.http,
		Retry:     policy.RetryOptions{MaxRetries: -1}, // the loader's
		Telemetry: policy.TelemetryOptions{ApplicationID: "thaw"},
	}}
	endpoint := p.endpoint
	if s.o.Endpoint != "" {
		endpoint = s.o.Endpoint
	} else if endpoint == "" {
		endpoint = "https://" + p.account + ".blob.core.windows.net"
	}
	bad := func(name, problem string) error {
		// Never the value, nor an error text made of it.
		return &source.Error{Kind: source.Denied, Source: p.String(), Detail: name + " " + problem, Fix: howTo}
	}
	if raw := env("AZURE_STORAGE_CONNECTION_STRING"); raw != "" {
		c, err := parseConnection(raw)
		if err != nil {
			return nil, bad("AZURE_STORAGE_CONNECTION_STRING", err.Error())
		}
		if c.account == p.account || c.account == "" {
			const how = "AZURE_STORAGE_CONNECTION_STRING"
			if c.key != "" {
				return s.accessWithKey(p, c.endpoint, c.account, c.key, how, opts)
			}
			return s.accessWithSAS(p, c.endpoint, c.sas, how, opts)
		}
	}
	account := env("AZURE_STORAGE_ACCOUNT")
	if key := env("AZURE_STORAGE_KEY"); key != "" && account == p.account {
		return s.accessWithKey(p, endpoint, account, key, "AZURE_STORAGE_KEY", opts)
	}
	if sas := env("AZURE_STORAGE_SAS_TOKEN"); sas != "" && (account == p.account || account == "") {
		return s.accessWithSAS(p, endpoint, sas, "AZURE_STORAGE_SAS_TOKEN", opts)
	}
	cred, err := s.identity()
	if err != nil {
		return nil, &source.Error{Kind: source.Denied, Source: p.String(), Detail: "there is no credential for account " + p.account, Fix: howTo}
	}
	client, err := container.NewClient(containerURL(endpoint, p), cred, opts)
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, Source: p.String(), Detail: "no client can be made for this endpoint"}
	}
	return &containerAccess{client: client, how: "the identity of this machine", fix: "give it the role Storage Blob Data Reader on the container; or " + howTo}, nil
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

func (s *Source) accessWithKey(p blobLocation, endpoint, account, key, how string, opts *container.ClientOptions) (*containerAccess, error) {
	cred, err := container.NewSharedKeyCredential(account, key)
	if err != nil {
		return nil, &source.Error{Kind: source.Denied, Source: p.String(), Detail: "the key in " + how + " is not base64", Fix: howTo}
	}
	client, err := container.NewClientWithSharedKeyCredential(containerURL(endpoint, p), cred, opts)
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, Source: p.String(), Detail: "no client can be made for this endpoint"}
	}
	return &containerAccess{client: client, how: "the account key of " + how, fix: "check that the key in " + how + " is the account's, and that this machine's clock is right"}, nil
}

func (s *Source) accessWithSAS(p blobLocation, endpoint, sas, how string, opts *container.ClientOptions) (*containerAccess, error) {
	sas = strings.TrimPrefix(sas, "?")
	if _, err := url.ParseQuery(sas); err != nil || !strings.Contains(sas, "sig=") {
		return nil, &source.Error{Kind: source.Denied, Source: p.String(), Detail: "the SAS in " + how + " is not one: it has no sig=", Fix: howTo}
	}
	client, err := container.NewClientWithNoCredential(containerURL(endpoint, p)+"?"+sas, opts)
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, Source: p.String(), Detail: "no client can be made for this endpoint"}
	}
	return &containerAccess{client: client, how: "the SAS of " + how, fix: "make a SAS for this container with read and list (sp=rl) that is not over yet"}, nil
}

func containerURL(endpoint string, p blobLocation) string {
	return strings.TrimSuffix(endpoint, "/") + "/" + url.PathEscape(p.container)
}

// connection is a parsed connection string.
type connection struct{ endpoint, account, key, sas string }

// developer is the account that every Azurite has, with its well-known key
// (UseDevelopmentStorage=true stands for it).
const (
	developer    = "devstoreaccount1"
	developerKey = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// parseConnection reads a storage connection string. Its errors never repeat
// any of it.
func parseConnection(raw string) (connection, error) {
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
		if protocol == "" {
			protocol = "https"
		}
		if suffix == "" {
			suffix = "core.windows.net"
		}
		c.endpoint = fmt.Sprintf("%s://%s.blob.%s", protocol, c.account, suffix)
	}
	u, err := url.Parse(c.endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return c, errors.New("has a BlobEndpoint that is not an http or https URL")
	}
	if c.account == "" {
		// A SAS for a custom domain names no account; else the host does.
		if m := blobHost.FindStringSubmatch(u.Host); m != nil {
			c.account = m[1]
		}
	}
	switch {
	case c.key != "" && c.account == "":
		return c, errors.New("has an AccountKey and no AccountName")
	case c.key == "" && c.sas == "":
		return c, errors.New("has neither AccountKey nor SharedAccessSignature")
	}
	return c, nil
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
	return err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "DefaultAzureCredential")
}
