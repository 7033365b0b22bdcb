package schedulerhint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/thaw-dev/thaw/functions/backoff"
)

const (
	// Name of the webhook's registration, Service and EndpointSlice.
	Name = "thaw-scheduler-hint"

	path          = "/scheduler-hint"
	syncEvery     = time.Minute      // between two checks of the objects
	retryEvery    = 5 * time.Second  // after a failure
	syncTimeout   = 10 * time.Second // bounds one check
	answerTimeout = 5 * time.Second  // bounds a request
)

type Options struct {
	Client    kubernetes.Interface
	Namespace string // of the Service
	Name      string // of the objects; "" is Name
	Address   string // HOST:PORT to listen on, such as :8443
	Advertise string // IP at which API servers reach this process

	// Hint is the node for the next pod of a revision. It is called concurrently and must
	// answer from memory. API servers show no certificate, so any client may ask: ok is
	// false unless uid is the revision's, which only readers of its namespace know.
	Hint func(namespace, revision, uid string) (node string, ok bool)
	Log  *slog.Logger
}

// Webhook serves node hints to API servers, on the leader.
type Webhook struct {
	o    Options
	cert atomic.Pointer[tls.Certificate]
	now  func() time.Time

	lastError string // last failure that was logged; Run's
}

// New checks the options and starts nothing.
func New(o Options) (*Webhook, error) {
	if o.Client == nil || o.Hint == nil || o.Log == nil || o.Namespace == "" {
		return nil, errors.New("schedulerhint: Client, Namespace, Hint and Log are needed")
	}
	if net.ParseIP(o.Advertise) == nil {
		return nil, fmt.Errorf("schedulerhint: Advertise %q is no IP address", o.Advertise)
	}
	o.Name = cmp.Or(o.Name, Name)
	return &Webhook{o: o, now: time.Now}, nil
}

// Run serves until ctx ends. Failures are logged and not returned: pods are created
// without hints.
func (w *Webhook) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w.o.Address)
	if err != nil {
		w.o.Log.Error("no node hints", "error", err)
		return nil
	}
	server := &http.Server{
		Handler: reviewHandler(w.o.Hint), ReadHeaderTimeout: answerTimeout, ReadTimeout: answerTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: 2 * time.Minute,
		ErrorLog:    slog.NewLogLogger(w.o.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return w.cert.Load(), nil
		}},
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer server.Close()
	serving.Go(func() {
		if err := server.ServeTLS(listener, "", ""); ctx.Err() == nil {
			w.o.Log.Error("no more node hints", "error", err)
		}
	})
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	for next := time.Duration(0); backoff.Sleep(ctx, next); {
		next = w.sync(ctx, port)
	}
	return nil
}

// sync brings the objects up to date and returns the time until the next check.
func (w *Webhook) sync(ctx context.Context, port int32) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	c, err := EnsureCertificate(ctx, w.o.Client.CoreV1().Secrets(w.o.Namespace), w.host(), false, w.now())
	if err == nil {
		w.cert.Store(&c.pair)
		err = w.syncEndpointSlice(ctx, port)
	}
	if err == nil {
		err = w.checkTrust(ctx, c.Root)
	}
	if err != nil {
		if text := err.Error(); text != w.lastError && ctx.Err() == nil {
			w.lastError = text
			w.o.Log.Warn("no node hints yet", "error", err)
		}
		return retryEvery
	}
	w.lastError = ""
	return syncEvery
}

func (w *Webhook) host() string { return Host(w.o.Name, w.o.Namespace) }

// syncEndpointSlice points the Service at this process.
func (w *Webhook) syncEndpointSlice(ctx context.Context, port int32) error {
	service, err := w.o.Client.CoreV1().Services(w.o.Namespace).Get(ctx, w.o.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	kind := discoveryv1.AddressTypeIPv4
	if net.ParseIP(w.o.Advertise).To4() == nil {
		kind = discoveryv1.AddressTypeIPv6
	}
	// the port of a slice has the name of the Service's port
	var name string
	if len(service.Spec.Ports) > 0 {
		name = service.Spec.Ports[0].Name
	}
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: w.o.Name, Namespace: w.o.Namespace,
			Labels:          map[string]string{discoveryv1.LabelServiceName: w.o.Name, discoveryv1.LabelManagedBy: "thaw.dev"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID}},
		},
		AddressType: kind,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{w.o.Advertise}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: new(corev1.ProtocolTCP)}},
	}
	slices := w.o.Client.DiscoveryV1().EndpointSlices(w.o.Namespace)
	have, err := slices.Get(ctx, w.o.Name, metav1.GetOptions{})
	missing := status.IsNotFound(err)
	if err == nil && have.AddressType != want.AddressType { // immutable
		err = slices.Delete(ctx, w.o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
		missing = err == nil
	}
	switch {
	case missing:
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	case equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
		equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences):
		return nil
	}
	want.ResourceVersion = have.ResourceVersion
	_, err = slices.Update(ctx, want, metav1.UpdateOptions{})
	return err
}

// checkTrust returns an error unless API servers trust the authority. The controller does
// not write the registration: with the right to do so it could have every object of the
// cluster sent to it and changed.
func (w *Webhook) checkTrust(ctx context.Context, root []byte) error {
	have, err := w.o.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, w.o.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, h := range have.Webhooks {
		if s := h.ClientConfig.Service; s == nil || s.Name != w.o.Name || s.Namespace != w.o.Namespace {
			return fmt.Errorf("the registration %s refers to another Service than %s", w.o.Name, w.host())
		}
		if !bytes.Contains(h.ClientConfig.CABundle, root) {
			return fmt.Errorf("API servers do not trust the webhook yet: thaw-knative install, or %s", TrustCommand)
		}
	}
	return nil
}
