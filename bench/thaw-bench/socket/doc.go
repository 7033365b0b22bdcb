// Package socket measures typing-time sessions over WebSockets: the memory of idle sockets,
// processor time per typed word, the first token of a submit, and a cold start during
// typing.
package socket
