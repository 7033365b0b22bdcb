package knative

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// Requests to the controller go through the API server's proxy, with the right
// services/proxy in thaw's namespace: no port has to be open, and the kubeconfig suffices.

const (
	// System is thaw's own namespace.
	System = "thaw-system"

	// controllerService is reached over TLS, so that keys do not cross the pod network in
	// clear; API servers do not check the certificate.
	controllerService = "https:thaw-controller:8090"

	// ControlTLSSecret holds, under TokenKey, the token of the control streams, and their
	// certificates. Activators and loaders mount their parts of it.
	ControlTLSSecret = "thaw-control-tls"
	// AdminSecret holds, under TokenKey, the admin token of the control API. No pod mounts it.
	AdminSecret = "thaw-admin"
	TokenKey    = "token"
)

// maxTries bounds the retries until the leader is hit: the API server picks a controller
// at random.
const maxTries = 24

// Controller returns the transport to the control API through the API server.
// Authorization is sent as X-Api-Key, since the API server uses that header itself.
func (c *Cluster) Controller() (http.RoundTripper, error) {
	config := rest.CopyConfig(c.config)
	config.Timeout = 0 // log streams have no timeout
	transport, err := rest.TransportFor(config)
	var base *url.URL
	if err == nil {
		base, _, err = rest.DefaultServerUrlFor(config)
	}
	if err != nil {
		return nil, &kit.Error{Exit: kit.ExitUsage, What: "the kubeconfig names no usable cluster", Err: err}
	}
	base.Path = "/" + strings.Trim(base.Path, "/") // otherwise the joined path lacks a leading slash
	return &controllerTransport{c, transport, base.JoinPath("api/v1/namespaces", System, "services", controllerService, "proxy")}, nil
}

// controllerTransport retries requests until the leader answers.
type controllerTransport struct {
	c         *Cluster
	transport http.RoundTripper
	base      *url.URL
}

func (t *controllerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	for try := 1; ; try++ {
		out := req.Clone(req.Context())
		out.URL = t.base.JoinPath(req.URL.EscapedPath())
		out.URL.RawQuery, out.Host, out.RequestURI = req.URL.RawQuery, "", ""
		if req.Body != nil {
			out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		out.Header.Del("Authorization")
		if key, is := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); is {
			out.Header.Set("X-Api-Key", key)
		}
		res, err := t.transport.RoundTrip(out)
		if err != nil {
			return nil, t.c.WithHint(err, "the controller")
		}
		if res.StatusCode == http.StatusMisdirectedRequest && try < maxTries {
			res.Body.Close()
			if try > 4 && !backoff.Sleep(req.Context(), 250*time.Millisecond) { // several misses in a row: there may be no leader now
				return nil, req.Context().Err()
			}
			continue
		}
		if err := t.checkRefusal(res); err != nil {
			return nil, err
		}
		return res, nil
	}
}

// checkRefusal returns the API server's own error; nil if the controller answered.
func (t *controllerTransport) checkRefusal(res *http.Response) error {
	if res.StatusCode < 400 || !strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		res.Body.Close()
		return err
	}
	var s metav1.Status
	if json.Unmarshal(text, &s) != nil || s.Kind != "Status" {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(text), res.Body), res.Body}
		return nil
	}
	res.Body.Close()
	const hint = "kubectl get pods -n " + System
	switch cause := errors.New(s.Message); {
	case s.Reason == metav1.StatusReasonNotFound:
		return &kit.Error{Exit: kit.ExitNotFound, What: "thaw is not installed at " + t.c.host, Hint: "thaw-knative install", Err: cause}
	case s.Reason == metav1.StatusReasonServiceUnavailable:
		return &kit.Error{Exit: kit.ExitUnavailable, What: "no controller of thaw runs at " + t.c.host, Hint: hint, Err: cause}
	case s.Reason == metav1.StatusReasonForbidden, s.Reason == metav1.StatusReasonUnauthorized:
		return &kit.Error{Exit: kit.ExitDenied, What: "the controller cannot be reached through the API server",
			Hint: "members of a team use the address of the Service thaw-local, inside the cluster: --server URL and a key", Err: cause}
	default:
		return t.c.WithHint(&status.StatusError{ErrStatus: s}, "the controller")
	}
}

func (c *Cluster) Admin(ctx context.Context) (string, error) {
	s, err := c.Secrets(System).Get(ctx, AdminSecret, metav1.GetOptions{})
	switch {
	case status.IsForbidden(err):
		return "", &kit.Error{Exit: kit.ExitDenied, What: "the admin token cannot be read",
			Hint: "--key KEY or THAW_KEY, a key of the team", Err: err}
	case isNotFound(err):
		return "", &kit.Error{Exit: kit.ExitNotFound, What: "thaw is not installed at " + c.host + ", or by an older version",
			Hint: "thaw-knative install", Err: err}
	case err != nil:
		return "", c.WithHint(err, "secret "+AdminSecret)
	}
	return string(bytes.TrimSpace(s.Data[TokenKey])), nil
}

// CreateKey creates a key of a team and returns its secret, which is not stored.
func (c *Cluster) CreateKey(ctx context.Context, of, name string) (string, team.Key, error) {
	if !team.IsTeam(of) {
		return "", team.Key{}, &kit.Error{Exit: kit.ExitUsage, What: fmt.Sprintf("%s belongs to the cluster itself", of),
			Hint: "a team's own namespace"}
	}
	secret, k, err := team.Create(ctx, c.kube.CoreV1(), of, name, time.Now())
	if err != nil {
		if _, answered := errors.AsType[*status.StatusError](err); !answered && ctx.Err() == nil && strings.HasPrefix(err.Error(), "the name") {
			return "", k, &kit.Error{Exit: kit.ExitUsage, What: err.Error()}
		}
		return "", k, c.WithHint(err, of+"/"+team.SecretName)
	}
	return secret, k, nil
}

// DeleteKey deletes a key; of "" searches all teams.
func (c *Cluster) DeleteKey(ctx context.Context, of, id string) error {
	gone := &kit.Error{Exit: kit.ExitNotFound, What: fmt.Sprintf("there is no key %.80s", id), Hint: "thaw-knative keys list"}
	if of == "" {
		all, _, err := c.Keys(ctx, "")
		if err != nil {
			return err
		}
		for _, k := range all {
			if k.ID == id {
				of = k.Team
			}
		}
		if of == "" {
			return gone
		}
	}
	err := team.Delete(ctx, c.kube.CoreV1(), of, id)
	if errors.Is(err, team.ErrNoKey) {
		return gone
	}
	if err != nil {
		return c.WithHint(err, of+"/"+team.SecretName)
	}
	return nil
}

// Keys lists the keys of a team, or of all for "", and what could not be read.
func (c *Cluster) Keys(ctx context.Context, of string) ([]team.Key, []string, error) {
	keys, problems, err := team.List(ctx, c.kube.CoreV1(), of)
	if err != nil {
		return nil, nil, c.WithHint(err, "the keys of "+cmp.Or(of, "all namespaces"))
	}
	return keys, problems, nil
}
