// Package rooms counts the free resources of one node: host memory, processors, pods and
// the memory of each GPU. A Room says whether a replica fits, chooses GPUs for it so that
// whole GPUs and groups of GPUs stay free, and takes or gives back what a replica
// reserves. It knows no functions, teams or nodes.
package rooms
