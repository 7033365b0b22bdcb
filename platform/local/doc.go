// Package local is the backend of `thaw serve`: it runs the orchestrator and an agent in the
// server's process, and takes the heartbeats of agents on other machines, to which it sends
// commands over TLS.
//
// The agent here is the fast path. Its heartbeats are calls, not requests, and its
// replicas have loopback endpoints; between an engine's first token and the release of
// the waiting requests there is one hand-over between goroutines and no HTTP.
//
// An agent on another host joins by sending its heartbeat to the server's API, which
// calls OnHeartbeat. Commands go to the URL in the heartbeat, over TLS
// with certificates at both ends (package enroll). An
// agent may vanish at any time: its replicas are placed elsewhere after its lease.
//
// The folder DATA belongs to one server at a time (a file lock that a crash releases);
// its epoch is raised at every start, so that agents can tell it from an earlier server.
package local
