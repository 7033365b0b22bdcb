// Package ingress is the class thaw.ingress.networking.knative.dev: it makes the
// Ingress objects of Knative that name it (KIngresses) into the table that our
// activators route by, and says of each of them when it holds.
//
// Compile is pure: objects in, link.Table and problems out. Controller watches the
// objects and the Services that they point to, hands out each new table with a
// version, and writes status. An object is ready once every activator that is
// connected routes by a table in which it stands; once it is, it stays so, also
// when another activator joins, which gets the table before it serves anything.
//
// # What is taken first
//
// Of a host's paths the longest prefix, of equals the one that asks for more
// header fields, of these the first. A prefix is one of letters, not of path
// segments: /foo fits /foobar. That is what Knative's own implementations do.
//
// A host belongs to the oldest object that names it. Who names it later is told
// so, and the rest of it is served. An object that is wrong is not served at all:
// what would be left of it is nobody's intention.
//
// # Where requests go
//
// To a revision of class thaw.dev by its name: the activator holds them while it
// is cold. To any other Service by the address of its cluster IP, or by its name
// where it has none. A share whose Service does not exist is kept and answered
// with an error, so that the other shares are served.
//
// An ExternalName that leads to our own private listener is Knative's way to say
// "as for that other host" (DomainMapping does): Compile puts the paths of the
// other host there, so that a request does not pass us twice, and a circle is
// found here and not by requests.
//
// # Models
//
// A Route is also a model, under its own name, if all its traffic goes to
// revisions of class thaw.dev: the field model of the OpenAI API then chooses
// among the same shares as the host does.
//
// # TLS
//
// Not ended here: certificates are Secrets, and thaw reads no Secret but its own
// keys. An object with spec.tls is served over plain HTTP, for whatever ends TLS
// before it (a load balancer or gateway); httpOption Redirected sends plain
// requests to https, unless X-Forwarded-Proto says that they came by it. Nor is TLS spoken
// to Services: system-internal-tls is refused with a reason.
package ingress
