package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// sdkError converts an error of the SDK. Of its text only status, code and the service's
// message are kept: it holds URLs, and those may hold signatures.
func sdkError(ctx context.Context, p blobLocation, a *containerAccess, name string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := &source.Error{Source: p.String(), File: name}
	r, ok := errors.AsType[*azcore.ResponseError](err)
	switch {
	case noIdentity(err):
		e.Kind, e.Detail, e.Fix = source.Denied, "no identity of this machine returned a token for "+p.describe(), a.setUp
		if tried := attempts(err); tried != "" {
			e.Detail += ": " + tried
		}
		if failed, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok && failed.RawResponse != nil &&
			failed.RawResponse.Request != nil {
			e.Detail += ": " + httpsource.Refusal(failed.RawResponse)
		}
		return e
	case !ok:
		no := httpsource.NoAnswer(err)
		e.Kind, e.Detail, e.Fix = no.Kind, p.describe()+" cannot be reached: "+no.Detail, no.Fix
		if no.Fix == httpsource.CheckNetwork {
			e.Fix = "check the account's name and this machine's network"
		}
		return e
	}
	return responseError(p, a, name, r)
}

// attempts returns why each member of the chain of identities has none.
func attempts(err error) string {
	var out []string
	text := strings.ReplaceAll(err.Error(), ":\n\t\t ", ": ") // a cause in a line of its own
	for line := range strings.SplitSeq(text, "\n") {
		if words, ok := strings.CutPrefix(line, "\t"); ok && !strings.HasPrefix(words, "\t") {
			for _, more := range []string{". To troubleshoot", ". See http", "  To troubleshoot"} {
				words, _, _ = strings.Cut(words, more)
			}
			out = append(out, functions.Shorten(httpsource.CleanWords(words, nil), 300))
		}
	}
	return strings.Join(out, "; ")
}

// responseError converts a refusal of the service.
func responseError(p blobLocation, a *containerAccess, name string, r *azcore.ResponseError) error {
	status, code := r.StatusCode, r.ErrorCode
	e := &source.Error{Source: p.String(), File: name, Detail: fmt.Sprintf("%s: %d", p.describe(), status)}
	redirect := ""
	if r.RawResponse != nil {
		redirect = httpsource.Redirect(r.RawResponse)
		e.Detail += redirect
	}
	if code != "" && len(code) < 60 {
		e.Detail += " " + strconv.QuoteToASCII(code)
	}
	switch {
	case status == 407: // of a proxy
		e.Kind = source.Denied
		if r.RawResponse != nil {
			e.Fix = httpsource.ProxyLogin(r.RawResponse.Header)
		}
	case status == 401 || status == 403:
		e.Kind, e.Fix = source.Denied, a.fix
		e.Detail += ", with " + a.how
		if !a.ends.IsZero() && !time.Now().Before(a.ends) {
			e.Detail += ", which expired at " + a.ends.UTC().Format(time.RFC3339)
		}
	case status == 404 && code == "ContainerNotFound":
		e.Kind, e.Fix = source.NotFound, "there is no such container; check its name and the account's"
	case status == 404 || status == 410:
		e.Kind, e.Fix = source.NotFound, "check container and prefix; names are case-sensitive"
	case status == 412 || status == 416:
		e.Kind = source.Changed
		e.Detail += ": it was overwritten while it was read"
	case status == 409 && code == "BlobArchived":
		e.Kind, e.Fix = source.Refused, "the blob is in the archive tier: move it to hot or cool first"
	case unsupported(code): // with any status: Azurite answers 500, which no other try mends
		e.Kind, e.Fix = source.Refused, "the service lacks a feature of Azure Blob Storage: upgrade it"
	case code == "InvalidHeaderValue":
		e.Kind, e.Fix = source.Refused,
			"the service may not support version "+serviceVersion+" of the API: upgrade it, or start Azurite with --skipApiVersionCheck"
	case status == 408 || status == 425 || status == 429 || status >= 500:
		e.Kind, e.Busy = source.Unavailable, status == 429 || status == 503
		if r.RawResponse != nil {
			e.RetryAfter = httpsource.RetryAfter(r.RawResponse.Header, time.Now())
		}
	default:
		e.Kind = source.Refused
	}
	addWords(e, r.RawResponse)
	if fix := codeFixes[code]; strings.HasSuffix(fix, "; else ") {
		e.Fix = fix + a.fix
	} else if fix != "" {
		e.Fix = fix
	} else if redirect != "" {
		e.Fix = "name that server as BlobEndpoint in " + connectionVariable + ", if it is meant"
	} else if e.Kind == source.Refused && e.Fix == "" {
		e.Fix = "Azure's list of Blob Storage error codes has the reason"
	}
	return e
}

// codeFixes is what helps against codes of the service that say more than their status. Behind
// an "else" comes what helps for the credential.
var codeFixes = map[string]string{
	"AuthorizationFailure":                "where the account's firewall names networks, add this machine's; else ",
	"PublicAccessNotPermitted":            "the account takes no anonymous requests: " + howTo,
	"KeyBasedAuthenticationNotPermitted":  "the account takes no keys and no SAS made with one: use a managed identity, workload identity or az login",
	"AccountIsDisabled":                   "enable the account in Azure, and check its subscription",
	"InvalidAuthenticationInfo":           "the token has expired or is of another tenant than the account's: check AZURE_TENANT_ID; else ",
	"AuthorizationSourceIPMismatch":       "the SAS is for other addresses than this machine's: make one without sip",
	"AuthorizationProtocolMismatch":       "the SAS is for https alone: use the https endpoint",
	"AuthorizationResourceTypeMismatch":   "the SAS is not for containers and objects: make one with srt=co",
	"AuthorizationServiceMismatch":        "the SAS is not for Blob Storage: make one with ss=b",
	"BlobBeingRehydrated":                 "the blob is on its way out of the archive tier, which takes hours: try again after that",
	"KeyVaultEncryptionKeyNotFound":       "the key in Key Vault that encrypts the account is gone or closed to it: restore it",
	"ContainerBeingDeleted":               "the container is being deleted",
	"BlobUsesCustomerSpecifiedEncryption": "the blob is encrypted with a key of the customer's own, which is not sent: store it without one",
	"OutOfRangeInput":                     "check the container's name: 3 to 63 small letters, digits and -",
	"InvalidResourceName":                 "check the container's name: 3 to 63 small letters, digits and -",
}

// unsupported reports whether code is a service's refusal of a header that it does not
// support.
func unsupported(code string) bool {
	return code == "FeatureNotSupported" || code == "UnsupportedHeader"
}

// addWords adds the reason that a server gave.
func addWords(e *source.Error, r *http.Response) {
	if r != nil && r.Body != nil { // which the SDK has read and keeps
		if words := httpsource.Words(r); words != "" {
			e.Detail += ": " + words
		}
	}
}
