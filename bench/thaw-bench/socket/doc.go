// Package socket measures typing-time WebSockets of thaw: memory of idle sockets, CPU time per
// typed word, accuracy of intents, time to the first token of a submit, and a cold start during
// typing.
package socket
