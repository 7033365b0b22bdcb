// Edge gives the test cluster the two things that Kubernetes and Knative leave to
// others: names (DNS) and a way in (an ingress class of Knative's). Both are as
// small as a test needs; thaw brings its own ingress class, and this one is what
// it is compared with.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
)

func main() {
	config := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "`FILE` that says where the cluster is")
	node := flag.String("node", "", "`ADDRESS` of this node: what names of the outside lead to")
	domain := flag.String("domain", "example.com", "Knative's public `DOMAIN`")
	class := flag.String("class", "edge.ingress.networking.knative.dev", "the ingress class it serves")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *config, *node, *domain, *class); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "edge:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config, node, domain, class string) error {
	ip := net.ParseIP(node).To4()
	if ip == nil {
		return fmt.Errorf("-node %q is no IPv4 address", node)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", config)
	if err != nil {
		return err
	}
	rest.QPS, rest.Burst = 100, 200
	core, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	knative, err := networking.NewForConfig(rest)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(core, 0)
	services := shared.Core().V1().Services().Lister()
	slices := shared.Discovery().V1().EndpointSlices().Lister()
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())

	fail := make(chan error, 2)
	names := &names{node: ip, domain: domain, services: services, slices: slices}
	go func() { fail <- names.serve(ctx, net.JoinHostPort(node, "53")) }()

	// Names are wanted at once, by the very pods that bring the kinds of Knative.
	for {
		_, err := knative.NetworkingV1alpha1().Ingresses("").List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-fail:
			return err
		case <-time.After(300 * time.Millisecond):
		}
	}
	door := &door{class: class, local: gateway, client: knative, services: services}
	if err := door.watch(ctx); err != nil {
		return err
	}
	server := &http.Server{Addr: ":80", Handler: door.handler(), ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { fail <- server.ListenAndServe() }()
	slog.Info("serving", "class", class)
	select {
	case <-ctx.Done():
		return errors.Join(ctx.Err(), server.Close())
	case err := <-fail:
		return err
	}
}
