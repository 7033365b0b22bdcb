// Package coldstart measures the way from zero replicas to the first token, as
// a client sees it and phase by phase as the platform tells it, and holds it
// against an earlier run: a phase that grew fails the bench by its name.
package coldstart
