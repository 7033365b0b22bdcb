package azuretest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/thaw-dev/thaw/testkit"
)

// The well-known account of every Azurite.
const (
	AzuriteAccount = "devstoreaccount1"
	AzuriteKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// StartAzurite starts program, an azurite-blob, in its default strict mode and returns
// its endpoint. The test ends it, or is skipped if program is empty.
func StartAzurite(t testing.TB, program string) string {
	t.Helper()
	if program == "" {
		testkit.Missing(t, "THAW_AZURITE names no azurite-blob (npm install azurite)")
	}
	for range 3 { // another program may take the port before azurite does
		if endpoint := startAzurite(t, program); endpoint != "" {
			return endpoint
		}
	}
	t.Fatal("azurite does not answer")
	return ""
}

// startAzurite starts the emulator at a free port; "" if it has ended.
func startAzurite(t testing.TB, program string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	cmd := exec.Command(program, "--blobHost", "127.0.0.1", "--blobPort", fmt.Sprint(addr.Port), "--location", t.TempDir(), "--silent",
		"--disableTelemetry")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			if strings.HasPrefix(res.Header.Get("Server"), "Azurite") {
				return "http://" + addr.String() + "/" + AzuriteAccount
			}
		}
		select {
		case <-ended:
			return ""
		case <-ctx.Done():
			t.Fatal("azurite does not answer")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// AzuriteContainer makes a container, and returns a client for it and a SAS that reads
// and lists it.
func AzuriteContainer(t testing.TB, endpoint, name string) (c *container.Client, token string) {
	t.Helper()
	key, err := container.NewSharedKeyCredential(AzuriteAccount, AzuriteKey)
	if err != nil {
		t.Fatal(err)
	}
	options := &container.ClientOptions{ClientOptions: policy.ClientOptions{PerCallPolicies: []policy.Policy{knownVersion{}}}}
	if c, err = container.NewClientWithSharedKeyCredential(endpoint+"/"+name, key, options); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	values, err := sas.BlobSignatureValues{
		Version: newestVersion, ContainerName: name, ExpiryTime: time.Now().Add(time.Hour),
		Permissions: (&sas.ContainerPermissions{Read: true, List: true}).String(),
	}.SignWithSharedKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return c, values.Encode()
}

// knownVersion replaces the SDK's version of the API, which Azurite refuses.
type knownVersion struct{}

func (knownVersion) Do(req *policy.Request) (*http.Response, error) {
	req.Raw().Header["x-ms-version"] = []string{newestVersion}
	return req.Next()
}
