// Package socket serves WebSockets on which a client sends a text while typing it: the Router
// decides at each word, models that are surely needed are started ahead, and a submit streams the
// answer.
//
// A generation is a request of this program's own to the handler of the data path, so it
// has the same key, limits, queue, Router and account as one over HTTP. A socket runs one
// at a time; its frames are events of that answer, written as they come: nothing is
// queued, and a client that does not read is ended by the write deadline of the server.
//
// What a client remembers by its client_id and key (the text, the intent) is in memory, in
// a bounded table.
package socket
