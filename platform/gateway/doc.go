// Package gateway is the front of an activator in a cluster: what Knative's
// ingress, load balancer and activator are to a plain Knative Service, in one
// process and one hop.
//
// A request is routed by its host: a link.Table, pushed by the controller, leads
// host, path and header to shares of traffic. A share is a revision of ours, which
// is woken if it is cold and whose requests stand in the activator's line with all
// others, or the address of a service that is none of ours. Where no host fits,
// calls of OpenAI's API are routed by the model they name, and the controller's
// own API goes to whichever controller leads.
//
// What comes for an engine of ours on a path of OpenAI's API is the activator's
// whole exchange, with the model's name forced: held streams are told how things
// stand, errors are typed, tokens are counted. Everything else goes through
// unread, whatever its method and protocol: HTTP/1.1, HTTP/2 without TLS,
// WebSockets, trailers, bodies that stream both ways at once. An engine of ours is
// asked on those paths too only by who has a key; a program of somebody's own
// (snapshot.Snapshot.External) is asked by anybody, as Knative would have it.
//
// A replica that breaks before the head of its answer has failed nobody yet: the
// request goes to another one, once, where what it has read of the body is kept
// still (64 KiB; what was read while it was held). A client that leaves while it is
// held frees its place at once: its body is read meanwhile, because net/http looks
// out for departures only then, up to 32 MiB.
//
// A head is read by net/http's strict reader and written anew, so there is nothing
// to smuggle past it; targets that are no path, CONNECT, and upgrades to anything
// but a WebSocket are not taken. K-Network-* and their like are the network's own
// words: they are answered here or taken out, never passed on.
package gateway
