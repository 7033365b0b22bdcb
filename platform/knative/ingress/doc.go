// Package ingress compiles Knative's Ingress objects of class thaw.ingress.networking.knative.dev
// into the activators' routing table, and writes their status; it serves no requests. The status
// says when an object is applied.
//
// Compile is pure: objects in, controlstream.Table and problems out. Controller watches the
// objects and the Services they refer to, pushes each new table with a version, and writes
// status. An object becomes ready once every connected activator has applied a table that
// contains it, and stays ready when another activator joins, which gets the table before it
// serves.
//
// # Precedence
//
// Of a host's paths the longest prefix wins, then the one with more header fields, then the
// first. A prefix is one of characters, not of path segments: /foo matches /foobar, as in
// Knative's own implementations.
//
// A host belongs to the oldest object that names it. A later object gets a problem for that
// host, and its other hosts are served. An invalid object is not served at all. A cluster-local
// host and an external one of the same name are two hosts: a team whose namespace is called
// like a top-level domain gets requests from inside the cluster by NAME.NAMESPACE, as the
// cluster's DNS has it, and takes no public domain from another team.
//
// # Where requests go
//
// To a revision of class thaw.dev by its name: the activator holds requests while it is
// cold. To any other Service by its cluster IP, or by its name if it has none. A split whose
// Service does not exist is answered with an error, so that the other splits are served.
//
// An ExternalName of our own private listener is Knative's way to refer to another host
// (DomainMapping uses it): Compile copies the paths of that host, so that a request does not
// pass the ingress twice, and circles are found here.
//
// # Models
//
// A Route is also a model, under its own name, if all its traffic goes to revisions of class
// thaw.dev: the field model of the OpenAI API then selects the same splits as the host.
//
// # TLS
//
// TLS is not terminated here: certificates are Secrets, and thaw reads only its own. An
// object with spec.tls is served over plain HTTP behind a load balancer or gateway that
// terminates TLS; httpOption Redirected redirects plain requests to https unless
// X-Forwarded-Proto is https. system-internal-tls is refused with a reason.
package ingress
