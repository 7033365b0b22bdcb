// Package agent is the daemon of one node: it holds the node's engines, keeps
// the books of what the node has, obeys the orchestrator, and says what became
// of it. In `thaw serve` it is called directly; on another host the same agent
// is reached over HTTP (Handler, Client) and joins a server (Join).
//
// # The agent is the truth
//
// The orchestrator's registry is made of what agents say. An agent says all of
// it every time: a heartbeat is the whole document, so a lost one costs two
// seconds and never a replica. It is pushed on every change and every 2 s;
// documents are made and handed over under one lock, so they cannot overtake
// each other.
//
// # Two ways to an engine
//
// Where the activator is on this machine it asks engines itself, with the key
// that each replica's engine wants; the heartbeat tells it. Everybody else goes
// through Handler, which knows the keys and passes on what clients may reach and
// nothing else: the join token may start, stop, put to sleep and load adapters,
// but not have an engine load code.
//
// # It may be killed at any time
//
// Engines are children of the keeper, not ours. An agent that starts asks its
// keeper what runs and adopts it, each engine with the notes that were kept with
// it, and READY again only after a token. One that ends by SIGTERM ends its
// engines, unless told to leave them. If the keeper dies, its engines die with
// it, their replicas fail, and a new keeper is started.
//
// # It keeps interpreters warm
//
// One process per engine environment (the program and the variables that its
// imports read) has the engine imported, and engines are forked from it: see
// package runtime/forkserver for the mechanism and hearth for the care. It begins when
// a model that would use it is known or loaded; a start that finds it coming up
// waits, since a plain start imports everything twice. Its memory is in the
// heartbeat's. It is replaced when it has died, hangs, has forked often, or when
// files of the installation change; engines it has forked live on. What cannot be
// forked is started plainly, and the replica says why. WarmAuto keeps one only
// where it is a small part of the node's memory.
//
// An environment that is first seen is looked at for bytecode: without it each
// start takes minutes. What is missing is made, or the command is named.
//
// # Checkpoints that are still arriving
//
// An engine that reads its files once starts before they are here: it is given
// a mount whose reads wait for their bytes (loader/mount) or, where nothing can
// be mounted and the engine can ask, a socket. It is READY when every byte was
// verified and the staging led to the very bytes that it read; then the link it
// was given is turned to the files themselves. Below 8 MiB of missing bytes, and
// where neither way is open, staging comes first.
//
// # What engines compile
//
// is kept per model, engine, version, GPU and flags, on the node. It is code: off
// the node only where the operator trusts the sources (loader/enginecache,
// --engine-caches). A start on an arriving checkpoint compiles into a scratch,
// which becomes the cache when the digest is known.
//
// # Who may command
//
// Every command carries the epoch of its orchestrator. The highest seen wins
// for the life of the agent; a lower one is refused (409 on the wire), whatever
// it asks. Commands are idempotent by replica id, so an answer that was lost is
// asked for again. On the wire every path wants the join token, compared in
// constant time.
package agent
