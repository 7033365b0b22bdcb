package azure

import (
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
