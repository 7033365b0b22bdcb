// Package gateway is the HTTP front of an activator in a cluster, in place of Knative's ingress and
// activator: by host, path or model name it gives requests for models to package activator, which
// queues them, and proxies those for other services and for the control API. The load balancer
// between Knative's two is replaced too.
//
// A request is routed by its host: a controlstream.Table, pushed by the controller, maps
// host, path and header to shares of traffic. A share is one of our revisions, woken if
// it is cold and queued with all other requests, or the address of another service. Where
// no host matches, calls of OpenAI's API are routed by the model they name, and the
// control API is proxied to the leading controller.
//
// A request for one of our engines on a path of OpenAI's API takes the activator's whole
// path, with the model's name forced: held streams get progress comments, errors are
// typed, tokens are counted. So does /infer, which is a chat or a completion by its body.
// Of the pods' other paths /readyz, /livez and /timeline are proxied, with a key; no other
// is known.
//
// Requests for a program of the user's own (snapshot.Snapshot.External) and for other
// services are proxied unread, without a key, in any method and protocol: HTTP/1.1, HTTP/2
// without TLS, WebSockets, trailers, bodies that stream both ways at once.
//
// If a replica breaks before the head of its answer, the request goes to another one,
// once, provided that the part of the body that was read is still kept (64 KiB, or what
// was read while it was held). A held request whose client leaves frees its place at
// once: its body is read meanwhile, up to 32 MiB, because net/http notices departures
// only then.
//
// A head is read by net/http's strict parser and written again, so nothing can be smuggled
// past it. Targets that are no path, CONNECT, and upgrades to anything but a WebSocket
// are refused. K-Network-* and similar fields belong to the network: they are answered or
// removed here and never passed on.
package gateway
