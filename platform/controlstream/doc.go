// Package controlstream is what the processes of a cluster say to each other: the
// controller, which decides, the activators, which hold requests, and on each node
// the loader, which speaks for the pods there.
//
// Activators and loaders dial the controller that leads and keep one connection
// to it. What they send is news, never a question: everything is pushed, both
// ways, so a wake costs a hop and not an interval. The first messages of a
// connection say everything anew, so whoever restarts, on either end, is told
// what is; nothing is remembered for somebody who is away.
//
// None of this needs the API of Kubernetes: an activator has no access to it at
// all.
//
// # On the wire
//
// A connection begins as an HTTP upgrade with a bearer token and goes on as frames,
// each a piece of one gob stream per direction. News that cannot be written yet is
// kept by subject, the newest of each: a slow peer gets fewer messages, never older
// ones, and no queue grows beyond the number of subjects. What is pending goes out
// in one write. A picture goes without its model where that is the one told last,
// so READY is about 300 bytes. Moments travel as how long ago they were: clocks of
// two machines are never compared. In an installation a link is TLS with certificates
// at both ends (platform/mtls): an activator cannot say that it is a loader, and
// the port is safe where no NetworkPolicy is enforced. Token and certificates are read
// anew for each connection. Plain links are for tests and for one machine.
//
// Who lives says something each second. Who says nothing, or takes nothing, for
// five is gone, stopped processes and lost cables included. Whoever is without a
// link asks all addresses of the controller's name at once, at first after 50 ms,
// at most each second; a controller that does not lead answers 421 and names the
// one that does. A message that makes no sense ends its own connection, and no
// other.
//
// # The controller's end
//
// A Hub is the data path of steer over all activators: a picture goes to each, and
// what they hold is added up. A replica that has left the routes counts as in use
// until each activator has said that it heard, together with what it gave the
// replica in that moment: the loop ends nobody's request by a race. An activator
// that is gone is believed for two seconds; then its requests are gone too, because
// they were on its connections. One that links again under its name replaces its
// former self in one step. A controller that has just begun is Quiet until it knows
// what runs, or warm models would look cold.
//
// The limits of teams hold over all activators by claims and grants that go along
// (activator/ratelimit); the hub only carries them, and tells the bank who is away.
//
// # The other ends
//
// An Activator feeds the data path and speaks for it: demand is told the moment it
// changes (then not again for 50 ms: every request through a warm model changes
// it), and all of it once a second. An activator whose controller is away serves on
// with what it was told last; the first message to the next one says who waits and
// when each model was used last, so nobody is forgotten and nobody looks idle since
// ever. A loader speaks through a Client; pods' shims speak to their loader over a
// Unix socket in the words of node.go.
package controlstream
