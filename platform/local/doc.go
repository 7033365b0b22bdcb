// Package local is the backend of one machine and its agents: the loop of
// platform/orchestrator, an agent in this process, and whatever agents join.
//
// The agent here is the fast path. Its heartbeats are calls, not requests; its
// replicas are told to the data path as loopback endpoints; from the moment an
// engine has generated its first token to the waiters' release there is one
// hand-over between goroutines and no HTTP.
//
// An agent elsewhere joins by pushing its heartbeat to the server's API, which
// calls Heard. It is commanded at the URL that it says, with the join token. It
// may vanish at any time: what it had is placed elsewhere after its lease.
//
// The folder DATA is held by one server at a time (a file lock that a crash
// releases); its epoch is raised at every start, so that agents can tell an
// older life of it from this one.
package local
