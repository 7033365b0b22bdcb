package azure_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/testkit/azuretest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
		srv := azuretest.New(t)
		s := azure.New(azure.Options{Getenv: srv.Getenv})
		t.Cleanup(s.Close)
		srv.Put("elsewhere/config.json", nil)
		return sourcetest.Location{
			Source: s, Location: azuretest.Location("a/model"), Nowhere: azuretest.Location("a/mode"),
			Put:    func(t *testing.T, name string, body []byte) { srv.Put("a/model/"+name, body) },
			Delete: func(t *testing.T, name string) { srv.Delete("a/model/" + name) },
		}
	})
}

// azurite is the program in its variable (.ci/components).
func azurite(t *testing.T) string { return azuretest.StartAzurite(t, os.Getenv("THAW_AZURITE")) }

func TestAzurite(t *testing.T) {
	endpoint := azurite(t)
	var count atomic.Int32
	fresh := func(t *testing.T) (c *container.Client, name, token string) {
		name = fmt.Sprintf("weights%d", count.Add(1))
		c, token = azuretest.AzuriteContainer(t, endpoint, name)
		return c, name, token
	}
	locationKey := func(t *testing.T, c *container.Client, name string, env map[string]string) sourcetest.Location {
		s := azure.New(azure.Options{Getenv: func(k string) string { return env[k] }})
		t.Cleanup(s.Close)
		return sourcetest.Location{
			Source:   s,
			Location: "az://" + azuretest.AzuriteAccount + "/" + name + "/models/one",
			Nowhere:  "az://" + azuretest.AzuriteAccount + "/" + name + "/models/two",
			Put: func(t *testing.T, blob string, body []byte) {
				t.Helper()
				if _, err := c.NewBlockBlobClient("models/one/"+blob).UploadBuffer(t.Context(), body, nil); err != nil {
					t.Fatal(err)
				}
			},
			Delete: func(t *testing.T, blob string) {
				t.Helper()
				if _, err := c.NewBlobClient("models/one/"+blob).Delete(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			},
		}
	}
	t.Run("connection string", func(t *testing.T) {
		sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
			c, name, _ := fresh(t)
			return locationKey(t, c, name, map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;AccountName=" + azuretest.AzuriteAccount + ";AccountKey=" + azuretest.AzuriteKey + ";BlobEndpoint=" + endpoint + ";"})
		})
	})
	t.Run("SAS", func(t *testing.T) {
		sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
			c, name, token := fresh(t)
			return locationKey(t, c, name, map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=" + endpoint + ";SharedAccessSignature=" + token})
		})
	})
	t.Run("a key that is not the account's", func(t *testing.T) {
		c, name, _ := fresh(t)
		p := locationKey(t, c, name, map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountName=" + azuretest.AzuriteAccount + ";AccountKey=" + azuretest.Key + ";BlobEndpoint=" + endpoint})
		if _, err := p.Source.Plan(t.Context(), p.Location, nil); source.KindOf(err) != source.Denied {
			t.Errorf("error %v", err)
		}
	})
	t.Run("no such container", func(t *testing.T) {
		c, _, _ := fresh(t)
		p := locationKey(t, c, "nosuchcontainer", map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountName=" + azuretest.AzuriteAccount + ";AccountKey=" + azuretest.AzuriteKey + ";BlobEndpoint=" + endpoint})
		_, err := p.Source.Plan(t.Context(), p.Location, nil)
		if source.KindOf(err) != source.NotFound || !strings.Contains(err.Error(), "nosuchcontainer") {
			t.Errorf("error %v", err)
		}
	})
}

func TestSingleBlob(t *testing.T) {
	srv := azuretest.New(t)
	s := azure.New(azure.Options{Getenv: srv.Getenv})
	t.Cleanup(s.Close)
	srv.Put("m/x.gguf", []byte("GGUF"))
	plan, err := s.Plan(t.Context(), azuretest.Location("m/x.gguf"), nil)
	if err != nil || len(plan.Files) != 1 || plan.Files[0].Name != "x.gguf" || plan.Files[0].Size != 4 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	if _, err := s.Plan(t.Context(), azuretest.Location("m/y.gguf"), nil); source.KindOf(err) != source.NotFound {
		t.Errorf("error %v", err)
	}
}

// Every invalid answer and every refusal has its kind, names what a user needs, and
// holds no secret.
func TestAnswers(t *testing.T) {
	const canary = "CANARYsignature"
	for _, tc := range []struct {
		name     string
		fault    func(w http.ResponseWriter, r *http.Request)
		kind     source.Kind
		after    time.Duration
		wantText string
	}{
		{"401", func(w http.ResponseWriter, r *http.Request) { azuretest.Fail(w, 401, "InvalidAuthenticationInfo") }, source.Denied, 0, "SAS"},
		{"403", func(w http.ResponseWriter, r *http.Request) {
			azuretest.Fail(w, 403, "AuthorizationPermissionMismatch")
		}, source.Denied, 0, "sp=rl"},
		{"404 container", func(w http.ResponseWriter, r *http.Request) { azuretest.Fail(w, 404, "ContainerNotFound") }, source.NotFound, 0, "no such container"},
		{"416", func(w http.ResponseWriter, r *http.Request) { azuretest.Fail(w, 416, "InvalidRange") }, source.Changed, 0, "overwritten"},
		{"409 archived", func(w http.ResponseWriter, r *http.Request) { azuretest.Fail(w, 409, "BlobArchived") }, source.Refused, 0, "archive"},
		{"429", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			azuretest.Fail(w, 429, "TooManyRequests")
		}, source.Unavailable, 7 * time.Second, "429"},
		{"503", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("x-ms-retry-after-ms", "1500")
			azuretest.Fail(w, 503, "ServerBusy")
		}, source.Unavailable, 1500 * time.Millisecond, "ServerBusy"},
		{"400", func(w http.ResponseWriter, r *http.Request) { azuretest.Fail(w, 400, "InvalidQueryParameterValue") }, source.Refused, 0, "400"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, source.Refused, 0, "302"},
		{"closed", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, source.Unavailable, 0, "cannot be reached"},
		{"not XML", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>") }, source.Unavailable, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := azuretest.New(t)
			srv.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool { tc.fault(w, r); return true })
			s := azure.New(azure.Options{Getenv: func(k string) string {
				if k == "AZURE_STORAGE_CONNECTION_STRING" {
					return "BlobEndpoint=" + srv.URL + "/" + azuretest.Account + ";SharedAccessSignature=sv=2024&sp=rl&sig=" + canary
				}
				return ""
			}})
			t.Cleanup(s.Close)
			_, err := s.Plan(t.Context(), azuretest.Location("m"), nil)
			e, ok := err.(*source.Error)
			if !ok || e.Kind != tc.kind || e.RetryAfter != tc.after {
				t.Fatalf("error %#v, want kind %q after %v", err, tc.kind, tc.after)
			}
			text := err.Error()
			if strings.Contains(text, canary) || strings.Contains(fmt.Sprintf("%+v", e), canary) {
				t.Errorf("the signature is in %q", text)
			}
			for _, want := range []string{azuretest.Account, azuretest.Container, tc.wantText} {
				if !strings.Contains(text, want) {
					t.Errorf("%q does not say %q", text, want)
				}
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	const addr = "127.0.0.1:1" // which no test is given
	s := azure.New(azure.Options{Getenv: func(k string) string {
		if k == "AZURE_STORAGE_CONNECTION_STRING" {
			return "AccountName=someaccount;BlobEndpoint=http://" + addr + "/someaccount;SharedAccessSignature=sp=rl&sig=CANARY"
		}
		return ""
	}})
	t.Cleanup(s.Close)
	_, err := s.Plan(t.Context(), "az://someaccount/weights/m", nil)
	if source.KindOf(err) != source.Unavailable || strings.Contains(err.Error(), "CANARY") {
		t.Errorf("error %v", err)
	}
}

func TestCredentials(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // what is dialled does not matter, only what is chosen
	for _, tc := range []struct {
		name     string
		env      map[string]string
		kind     source.Kind
		wantText string
	}{
		{"no list", map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "CANARY"}, source.Denied, "KEY=VALUE"},
		{"nothing to sign with", map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountName=account1"}, source.Denied, "neither AccountKey"},
		{"endpoint is no URL", map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=CANARY;AccountKey=CANARY;AccountName=account1"}, source.Denied, "BlobEndpoint"},
		{"key is not base64", map[string]string{"AZURE_STORAGE_ACCOUNT": "account1", "AZURE_STORAGE_KEY": "CANARY!"}, source.Denied, "not base64"},
		{"SAS without signature", map[string]string{"AZURE_STORAGE_ACCOUNT": "account1", "AZURE_STORAGE_SAS_TOKEN": "?sp=CANARY"}, source.Denied, "no sig="},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := azure.New(azure.Options{Getenv: func(k string) string { return tc.env[k] }})
			t.Cleanup(s.Close)
			_, err := s.Plan(ctx, "az://account1/weights/m", nil)
			if source.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.wantText) || strings.Contains(err.Error(), "CANARY") {
				t.Errorf("error %v", err)
			}
		})
	}
}
