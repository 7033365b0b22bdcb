// Package functions defines thaw's domain types: models and the other kinds of function
// that a client names in the OpenAI field "model", teams, replicas, nodes, their states,
// the timeline of a cold start, and the rules that a definition file must meet.
//
// It imports the standard library only, does no I/O and starts no goroutine.
// platform/catalog decodes files into these types; their defaults and validation are
// here. It is one idea although it is large: a kind is its type, its rules and its schema,
// and each change of a kind changes all three.
package functions
