// Package functions defines thaw's domain: what a client may name in the OpenAI field
// "model" (functions), their teams, the states of replicas, nodes and tiers, the
// timeline of a cold start, and the records that API, CLI and control stream share.
//
// It imports the standard library only, does no I/O and starts no goroutine.
// platform/catalog decodes files into these types; their defaults and validation are
// here. It is one idea although it is large: a kind is its type, its rules and its schema,
// and each change of a kind changes all three.
package functions
