// Package load asks a gateway many times and checks every answer, byte for
// byte. It writes requests and reads answers by hand: the load must cost less
// than what it measures, on the same cores.
package load
