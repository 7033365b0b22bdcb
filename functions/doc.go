// Package functions holds the words of thaw: what a client may name in the
// OpenAI field "model" (functions), who owns them (teams), what a replica, a
// node and a tier can be, and the timeline of a cold start.
//
// It is layer 0: it imports the standard library only, does no I/O and starts
// no goroutine, so every other room can speak these words without learning
// anything about a backend. Decoding a file into these types is the business of
// platform/catalog; here live the rules: defaults and validation.
package functions
