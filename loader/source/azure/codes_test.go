package azure

import (
	"errors"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
)

// TestRefusalsNameAWayOut: each refusal of the service says what helps, and one whose code says
// more than its status does not blame the credential.
func TestRefusalsNameAWayOut(t *testing.T) {
	a := &containerAccess{how: "a key", fix: "check the key"}
	for _, c := range []struct {
		status int
		code   string
		want   string
	}{
		{403, "AuthenticationFailed", "check the key"},
		{403, "AuthorizationFailure", "where the account's firewall names networks, add this machine's; else check the key"},
		{403, "KeyBasedAuthenticationNotPermitted", "use a managed identity"},
		{403, "AccountIsDisabled", "enable the account"},
		{403, "AuthorizationSourceIPMismatch", "without sip"},
		{403, "AuthorizationProtocolMismatch", "https"},
		{403, "AuthorizationResourceTypeMismatch", "srt=co"},
		{409, "PublicAccessNotPermitted", "AZURE_STORAGE_CONNECTION_STRING"},
		{409, "ContainerBeingDeleted", "being deleted"},
		{409, "BlobUsesCustomerSpecifiedEncryption", "store it without one"},
		{400, "InvalidAuthenticationInfo", "AZURE_TENANT_ID"},
		{400, "OutOfRangeInput", "3 to 63 small letters"},
		{400, "InvalidQueryParameterValue", "Azure's list of Blob Storage error codes"},
		{302, "", "error codes"},
	} {
		err := responseError(blobLocation{}, a, "", &azcore.ResponseError{StatusCode: c.status, ErrorCode: c.code})
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %s: %v\nlacks %s", c.status, c.code, err, c.want)
		}
	}
}

// TestAttempts: what each member of the chain of identities lacks is in one line, with a cause
// that has a line of its own.
func TestAttempts(t *testing.T) {
	err := errors.New(strings.Join([]string{"DefaultAzureCredential: failed to acquire a token.", "Attempted credentials:",
		"\tEnvironmentCredential: missing environment variable X", "\tClientSecretCredential: server response error:",
		"\t\t Get \"https://h/\": refused", "\tB authentication failed. ", "\t\tGET http://h", "\t\tRESPONSE 400",
		"\tC: none. See https://aka.ms/x. To troubleshoot, visit https://aka.ms/y"}, "\n"))
	const want = `EnvironmentCredential: missing environment variable X; ClientSecretCredential: server response error: ` +
		`Get "https://h/": refused; B authentication failed; C: none`
	if got := attempts(err); got != want {
		t.Error(got)
	}
}

// TestOtherSpellings: the account as its address and the SAS as the portal shows it are taken;
// variables of other tools, and a federated token that is not there, are named at once.
func TestOtherSpellings(t *testing.T) {
	at := blobLocation{account: "acct", container: "cont"}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"AZURE_STORAGE_ACCOUNT": "https://acct.blob.core.windows.net/", "AZURE_STORAGE_KEY": "a2V5"}, "the account key of AZURE_STORAGE_KEY"},
		{map[string]string{"AZURE_STORAGE_ACCOUNT": "acct.blob.core.windows.net", "AZURE_STORAGE_KEY": "a2V5"}, "the account key of AZURE_STORAGE_KEY"},
		{map[string]string{"AZURE_STORAGE_ACCOUNT": "acct", "AZURE_STORAGE_SAS_TOKEN": "https://acct.blob.core.windows.net/cont?sv=1&se=2030-01-01&sig=a+b%3D"}, "the SAS of AZURE_STORAGE_SAS_TOKEN"},
		{map[string]string{"AZURE_STORAGE_ACCOUNT": "acct", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}, "AZURE_STORAGE_ACCOUNT_KEY is set, and AZURE_STORAGE_KEY is read; set"},
		{map[string]string{"AZURE_STORAGE_ACCOUNT_NAME": "acct"}, "AZURE_STORAGE_ACCOUNT_NAME is set, and AZURE_STORAGE_ACCOUNT is read; set"},
		{map[string]string{"AZURE_FEDERATED_TOKEN_FILE": "/none/token"}, `AZURE_FEDERATED_TOKEN_FILE names "/none/token": no such file or directory (let the webhook`},
	} {
		s := New(Options{Getenv: func(name string) string { return c.env[name] }})
		got := ""
		if a, err := s.newAccess(at); err != nil {
			got = err.Error()
		} else {
			got = a.how + ", " + a.setUp + ", " + a.client.URL()
		}
		if !strings.Contains(got, c.want) || strings.Count(got, "://acct.blob") > 1 || strings.Contains(got, "sig=") && !strings.Contains(got, "sig=a%2Bb%3D") {
			t.Errorf("%v: %s\nlacks %s", c.env, got, c.want)
		}
		s.Close()
	}
}
