// Package api is the server and the client of thaw's control API: functions, replicas, nodes,
// teams, cold starts, events, keys, agents, caches, prewarms, Routers' decisions, metrics and
// health, with who may call each and lists that stream changes; not of the OpenAI API (/v1).
//
// # One table
//
// It is one idea: the paths of one table and their client. routes.go lists every path with its method, who may call it and what it
// answers. Dispatch, 405 and Allow, the rights, the OpenAPI document and the
// tests of all of these are made from that table, so no path is missing in one of them.
// Who may call is decided from the row that matched, never from the text of a
// path: a path is compared byte by byte, nothing is decoded or cleaned, so two
// spellings of one path do not exist.
//
// # Who may call
//
//   - read: where /v1 is open (a loopback address, until the first key exists)
//     everyone; else a key. A team's key sees its team and nothing of others:
//     what belongs to another team does not exist (404).
//   - admin: the admin token or an admin key, always.
//   - own: a key, always: a team's for what is its own, an admin's for all. What
//     is done under it is charged to that team.
//   - probe: everyone. /healthz and /readyz need no key, because a load balancer
//     has none; the reasons of a 503 are in the answer to readers only.
//     This replaces, for these two paths, the contracts' "open where /v1 is".
//
// On loopback, Host must be a loopback name (421), and a browser's Origin must
// be the Host itself (403), as package browser checks them: a foreign page must
// not reach a server on its reader's laptop.
//
// # Watching
//
// A list with ?watch is a stream of lines of JSON (application/x-ndjson): first
// every item as {"event":"put","item":…}, then {"event":"synced"}, then what
// changes, {"event":"put",…} or {"event":"removed","name":…}. An empty line
// every 15 s says that the stream lives. It ends when the client leaves.
package api
