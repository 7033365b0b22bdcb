// Package admission has one function's Queue of waiting requests (by priority, teams in turn) and
// the slots of its replicas: it admits each request to a replica chosen by adapter, affinity and
// load, and decides when to ask for a start or to refuse; it sends no request and does no I/O.
//
// Queue has the waiting requests, the replicas with their slots, and the choice
// of replica under one mutex. A request that is admitted holds a slot of one
// replica until it leaves, so an admitted request never has to queue again.
//
// Rules of the queue: it is bounded in requests and in bytes, and a full queue
// is an answer. Requests of one team are admitted by priority (high, then normal) and
// within one in order of arrival; teams take turns, so a team with ten thousand requests
// delays another team's by one turn. Requests of priority low come behind all others,
// whatever their team, make place for others in a full queue, and do not wait inside an
// engine. A request that leaves frees its place and its bytes at once.
//
// Rules of the choice, in order: replicas that failed a moment ago or have no
// free slot are left out; a request for an adapter goes to a replica that has it
// loaded, while one of those has a slot; a second try goes to another replica if
// there is one; a request with an affinity key (its session, or how its prompt
// begins) goes where the key hashes to, so that the engine's prefix cache is
// used again, unless that replica is clearly busier than the least loaded;
// every other request goes to the least loaded. The load of a replica are its
// requests and those that wait inside its engine; between equals, the one whose
// KV cache is hit more often is chosen. Rendezvous hashing moves only
// the keys of a replica that appears or disappears.
//
// Request is the life of one request at a queue: Enter and, if it waits, Decide, whose value
// also says what to ask of the platform; then it is admitted, and MarkFailed, Retry or Leave.
// The package does no I/O, starts no goroutine, reads no clock and calls none but Listeners:
// the platform pushes capacity with Publish, which admits waiting requests before it returns.
// The HTTP proxy, the reservation and the simulator run the same code.
package admission
