// Package starttime estimates how long a model takes on a node from the decision to start it to
// READY (able to serve): from measured starts, else from its size, where its weights are, and the
// node's rates. The estimates only have to order nodes correctly.
package starttime
