// Package agent is the daemon of one node: it has models downloaded, starts and stops engines as
// the orchestrator commands, proxies requests to them, and sends its state in heartbeats; Client is
// the orchestrator's end of its HTTP API; an agent decides no placement. It watches GPUs and the
// store for that. In `thaw serve` it is called directly; on another host the same agent is reached
// over HTTP (Handler, Client) and joins a server (Join).
//
// # The agent is the source of truth
//
// The orchestrator's registry is made of heartbeats. A heartbeat is the whole state of
// the node, so a lost one costs two seconds and never a replica. It is sent on every
// change and every 2 s; heartbeats are made and passed on under one lock, so they stay
// in order.
//
// # Two ways to an engine
//
// An activator on this machine sends requests to the engines themselves, with each
// engine's key from the heartbeat. All others go through Handler, which adds the key and
// passes only the paths that clients may use: the server may start, stop, put to
// sleep and load adapters, but not have an engine load code.
//
// # It may be killed at any time
//
// Engines are children of the supervisor, not of the agent. A starting agent lists what
// its supervisor runs and adopts it, each engine with the metadata that was stored with
// its process; it is READY again only after a token. On SIGTERM the agent ends its
// engines, unless Options.KeepEngines is set. If the supervisor ends, its engines end with it,
// their replicas fail, and a new supervisor is started.
//
// # It keeps interpreters warm
//
// One process per engine environment (the program and the variables that its imports
// read) has the engine imported, and engines are forked from it: see runtime/forkserver
// for the mechanism and forkServers for the policy. It starts when a model that would
// use it is known or loaded; a start that finds it importing waits, since a plain start
// imports everything twice. Its memory is in the heartbeat. It is replaced when it has
// ended, does not answer, has forked often, or when files of the installation change;
// engines it has forked live on. An engine that cannot be forked is started plainly, and
// the replica reports why. WarmAuto keeps a parent only if it is a small part of the
// node's memory.
//
// The bytecode of an environment is checked once: without it each start takes minutes.
// Missing bytecode is compiled, or the command that does it is logged.
//
// # Checkpoints that are still arriving
//
// An engine that reads its files once starts before they have arrived: it gets a mount
// whose reads wait for their bytes (loader/mount) or, where nothing can be mounted and
// the engine supports it, a socket. It is READY when every byte is verified and the
// staging led to the very bytes that it read; then its link is pointed to the files
// themselves. Below 8 MiB of missing bytes, and where neither way works, the files
// arrive first.
//
// # Compile caches
//
// What engines compile is kept per model, engine, version, GPU and flags, on the node.
// It is code: it leaves the node only if the operator trusts the sources
// (loader/enginecache, --engine-caches). A start on an arriving checkpoint compiles into
// an empty cache, which is kept under the digest once that is known.
//
// # Commands
//
// Every command carries the epoch of its orchestrator. The highest epoch wins for the
// life of the agent; a lower one is refused (409 over HTTP), and one
// that is absurdly higher too. Commands are idempotent by
// replica id, so a command whose answer was lost can be repeated. Connections
// are accepted from the agent's server only, by its certificate (package enroll).
//
// It is one idea: the state of one node. Replicas, memory, store and fork servers change
// together and go out in one heartbeat.
package agent
