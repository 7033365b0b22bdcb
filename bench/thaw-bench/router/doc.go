// Package router measures how a Router decides: the time of a decision, and whether
// labelled prompts of public sources meet the right rule, what a whole request through one
// costs, and what a hedge takes. It also fits the weights of the
// complexity score, on two thirds of the sources.
package router
