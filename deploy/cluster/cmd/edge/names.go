package main

import (
	"context"
	"log/slog"
	"net"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelist "k8s.io/client-go/listers/core/v1"
	discoverylist "k8s.io/client-go/listers/discovery/v1"
)

// gateway is the name under which services inside the cluster reach the door.
const gateway = "edge.knative-serving.svc.cluster.local"

// names answers for the services of the cluster and for Knative's public domain,
// and knows nothing else: the cluster has no way out.
type names struct {
	node     net.IP
	domain   string
	services corelist.ServiceLister
	slices   discoverylist.EndpointSliceLister
}

func (n *names) serve(ctx context.Context, addr string) error {
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(ctx, "udp", addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	buf := make([]byte, 1500)
	for {
		size, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		if reply := n.answer(buf[:size]); reply != nil {
			if _, err := conn.WriteTo(reply, from); err != nil {
				slog.Warn("an answer was not sent", "err", err)
			}
		}
	}
}

// answer is nil for what is no question.
func (n *names) answer(packet []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(packet)
	if err != nil || head.Response {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	ips, known := n.find(strings.TrimSuffix(strings.ToLower(q.Name.String()), "."))
	reply := dnsmessage.Header{ID: head.ID, Response: true, Authoritative: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, reply)
	b.EnableCompression()
	if b.StartQuestions() != nil || b.Question(q) != nil || b.StartAnswers() != nil {
		return nil
	}
	if q.Type == dnsmessage.TypeA {
		for _, ip := range ips {
			if v4 := ip.To4(); v4 != nil {
				if b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, dnsmessage.AResource{A: [4]byte(v4)}) != nil {
					return nil
				}
			}
		}
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}

// find is where a name leads to. known is false for a name that does not exist;
// a service without endpoints exists and leads nowhere.
func (n *names) find(name string) (ips []net.IP, known bool) {
	for range 5 { // a name may stand for another one
		if name == gateway || name == n.domain || strings.HasSuffix(name, "."+n.domain) {
			return []net.IP{n.node}, true
		}
		rest, ok := strings.CutSuffix(name, ".svc.cluster.local")
		if !ok {
			return nil, false
		}
		labels := strings.Split(rest, ".")
		if len(labels) < 2 {
			return nil, false
		}
		// The last two are service and namespace; before them may be a pod's.
		service, err := n.services.Services(labels[len(labels)-1]).Get(labels[len(labels)-2])
		if err != nil {
			return nil, false
		}
		switch {
		case service.Spec.Type == corev1.ServiceTypeExternalName:
			name = strings.TrimSuffix(strings.ToLower(service.Spec.ExternalName), ".")
		case service.Spec.ClusterIP == corev1.ClusterIPNone:
			return n.endpoints(service), true
		default:
			return []net.IP{net.ParseIP(service.Spec.ClusterIP)}, true
		}
	}
	return nil, false
}

func (n *names) endpoints(service *corev1.Service) (ips []net.IP) {
	slices, err := n.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	if err != nil {
		return nil
	}
	for _, s := range slices {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				for _, a := range e.Addresses {
					ips = append(ips, net.ParseIP(a))
				}
			}
		}
	}
	return ips
}
