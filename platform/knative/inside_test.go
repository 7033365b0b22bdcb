package knative

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestController: requests reach the controller unchanged through an API server that picks
// one of several controllers.
func TestController(t *testing.T) {
	const status = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": %d, "reason": "%s", "message": "said"}`
	for _, x := range []struct {
		name    string
		body    string
		answers []string // CODE TEXT, the last one repeated
		want    string   // of the answer's body
		exit    int      // of the error, if want is empty
		calls   int
	}{
		{name: "leads", answers: []string{"200 yes"}, want: "yes", calls: 1},
		{name: "the other leads", body: "hello", answers: []string{"421 no", "421 no", "421 no", "200 yes"}, want: "yes", calls: 4},
		{name: "its own refusal", answers: []string{`404 {"error": {"message": "no function"}}`}, want: `{"error": {"message": "no function"}}`, calls: 1},
		{name: "not installed", answers: []string{"404 " + fmt.Sprintf(status, 404, "NotFound")}, exit: kit.ExitNotFound, calls: 1},
		{name: "none runs", answers: []string{"503 " + fmt.Sprintf(status, 503, "ServiceUnavailable")}, exit: kit.ExitUnavailable, calls: 1},
		{name: "may not", answers: []string{"403 " + fmt.Sprintf(status, 403, "Forbidden")}, exit: kit.ExitDenied, calls: 1},
		{name: "is not known", answers: []string{"401 " + fmt.Sprintf(status, 401, "Unauthorized")}, exit: kit.ExitDenied, calls: 1},
		{name: "breaks", answers: []string{"500 " + fmt.Sprintf(status, 500, "InternalError")}, exit: kit.ExitFailed, calls: 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			calls := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				if got := r.URL.RequestURI(); got != "/up/api/v1/namespaces/thaw-system/"+
					"services/https:thaw-controller:8090/proxy/api/v1/functions/a/b?x=y%26" || string(b) != x.body {
					t.Errorf("%s %q", got, b)
				}
				if r.Header.Get("Authorization") != "Bearer mine" || r.Header.Get("X-Api-Key") != "sk" || r.Header.Get("Accept") != "text/plain" {
					t.Errorf("%v", r.Header)
				}
				code, text, _ := strings.Cut(x.answers[min(calls, len(x.answers)-1)], " ")
				calls++
				w.Header().Set("Content-Type", "application/json")
				var n int
				fmt.Sscan(code, &n)
				w.WriteHeader(n)
				io.WriteString(w, text)
			}))
			defer server.Close()
			c := &Cluster{config: &rest.Config{Host: server.URL + "/up", BearerToken: "mine"}, host: server.URL}
			way, err := c.Controller()
			if err != nil {
				t.Fatal(err)
			}
			req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://thaw-controller/api/v1/functions/a/b?x=y%26",
				strings.NewReader(x.body))
			req.Header.Set("Authorization", "Bearer sk")
			req.Header.Set("Accept", "text/plain")
			res, err := way.RoundTrip(req)
			if calls != x.calls {
				t.Errorf("%d calls", calls)
			}
			if e, is := errors.AsType[*kit.Error](err); is {
				if x.want != "" || e.Exit != x.exit || e.Hint == "" && x.exit != kit.ExitFailed {
					t.Errorf("%+v", e)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if b, _ := io.ReadAll(res.Body); string(b) != x.want {
				t.Errorf("%s", b)
			}
		})
	}
}
