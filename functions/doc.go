// Package functions defines the domain types (models, Routers, Remotes, Compositions, teams,
// replicas, nodes, cold start timelines) that all parts of thaw share, and the defaults, validation
// and JSON schema of the kinds that users define; it runs nothing.
//
// It imports the standard library only, does no I/O and starts no goroutine.
// platform/catalog decodes files into these types; their defaults and validation are
// here. It is one idea although it is large: a kind is its type, its rules and its schema,
// and each change of a kind changes all three.
package functions
