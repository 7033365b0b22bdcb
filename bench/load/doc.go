// Package load is the benchmarks' HTTP client that generates load: it sends equal requests over
// many connections, each when the one before is answered, and checks every answer, to the byte if
// asked. It writes HTTP itself: the load must cost less than what it measures, on the same cores.
package load
