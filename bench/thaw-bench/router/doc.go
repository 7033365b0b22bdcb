// Package router measures Routers (time of a decision, labelled prompts by rule, cost of a routed
// request, hedged cold starts) and trains the weights of package activator/router/category. The
// weights are fitted on two thirds of the sources.
package router
