// Package controlstream is the protocol of a cluster's processes and both its ends: each activator
// and each node's loader keeps one HTTP/2 stream to the leading controller (Hub), which sends
// routes, API keys, limits and commands and gets demand, heartbeats and pods' statuses. The
// controller decides, the activators hold requests, and on each node the loader also speaks for the
// pods there. It is one idea: the messages, their transport and both of its ends.
//
// Activators and loaders dial the leading controller and keep one connection to it.
// Everything is pushed, in both directions, so a wake costs a hop and not an interval.
// The first messages of a connection are a full sync, so a process that restarts, at
// either end, learns the present state; nothing is stored for a peer that is away.
//
// None of this needs the API of Kubernetes: an activator has no access to it.
//
// # On the wire
//
// A control stream is one HTTP/2 POST with a bearer token, on a connection of its own: the
// peer's messages are the request's body, the controller's are the response's, and each
// direction is one gob stream. The content type is the protocol; a peer of another one is
// refused with 426. News that cannot be written yet is kept by subject, the newest of each:
// a slow peer gets fewer messages, and no queue grows beyond the number of subjects.
// HTTP/2's window bounds what is under way. Pending news goes out in one write. A snapshot
// goes without its model if the peer has that model already, so READY is about 300 bytes.
// Moments travel relative to the frame: the clocks of two machines are never compared. In
// an installation the connection is TLS with certificates at both ends (platform/mtls): an
// activator cannot pass for a loader, and the port is safe where no NetworkPolicy is
// enforced. Token and certificates are read again for each connection. Plain connections
// are for tests and for one machine. A server needs Configure.
//
// No end writes a message that is longer than the other end reads. What teams write is
// bounded before: activators get models without the fields for nodes, and long updates come
// in parts, which are applied as one (bounds.go).
//
// Each end sends at least one message a second. A peer that sends nothing, or reads
// nothing, for five seconds is gone, which covers stopped processes and lost cables. A
// peer without a connection dials all addresses of the controller's name at once, first
// after 50 ms, then at most once a second; a controller that does not lead answers 421
// and names the leader. A malformed message ends its own connection and no other.
//
// # The controller's end
//
// A Hub is the orchestrator's data path over all activators: a snapshot goes to each,
// and their demand is added up and given to the orchestrator with each change. A replica that has left the routes counts as in use
// until each activator has acknowledged that, together with the requests it sent to the
// replica meanwhile: the loop ends no request by a race. The demand of an activator
// whose connection is lost counts for two more seconds; then its requests are gone too,
// because they were on its connections. An activator that connects again under its name
// replaces its former connection in one step. A controller that has just started is
// Quiet until it knows what runs, or READY models would look cold.
//
// The limits of teams hold over all activators by usage reports and allotments that
// travel along (package activator/ratelimit); the hub carries them and reports
// disconnected activators to the Coordinator.
//
// # The other ends
//
// An Activator publishes snapshots to the data path and passes on the demand that this reports:
// at once (then not again for 50 ms, since every request through a READY model
// changes it), and all of it once a second. An acknowledgement comes with the requests in flight
// that were reported after its snapshots were published. Without a controller an activator serves on
// with the last snapshots; its first message to the next controller has the waiting
// requests and the last use of each model, so no request is lost and no model looks idle
// since ever. A loader uses a Client; the pods' shims speak to their loader over a Unix
// socket with the lines of node.go.
package controlstream
