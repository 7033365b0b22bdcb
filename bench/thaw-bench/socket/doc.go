// Package socket measures typing-time sessions: the memory of idle sockets and processor
// time per typed word beside a bare echo server of the same library, the first token of a
// submit beside the same request over HTTP, and a cold start behind typing.
package socket
