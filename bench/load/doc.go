// Package load generates the load of benchmarks: it sends many requests to a gateway and
// checks every answer byte for byte. It writes HTTP itself: the load must cost less than
// what it measures, on the same cores.
package load
