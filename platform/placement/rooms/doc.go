// Package rooms counts one node's free host memory, processors, pods and memory of each GPU, says
// whether a replica fits, chooses its GPUs, and reserves or frees what it takes; Packing tries the
// rooms of several nodes in order, but nothing here ranks nodes. A Room chooses GPUs so that whole
// GPUs and groups of GPUs stay free. It knows no functions, teams or nodes.
package rooms
