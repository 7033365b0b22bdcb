// Package router measures Routers: the time of a decision, whether labelled prompts match
// the right rule, and what a request through a Router and a hedge cost. It also fits the
// weights of the complexity score, on two thirds of the sources.
package router
