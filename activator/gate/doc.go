// Package gate is where the requests of one function wait, and how they are
// let through.
//
// The law of the line: bounded in requests and in bytes, and full is an answer;
// first come first served inside a team, and between teams round robin, so a
// team with ten thousand requests delays another team's by one turn; a waiter
// that leaves frees its place and its bytes at once.
//
// Let through are as many as the READY replicas have slots for: a request
// holds its slot from being let through until it leaves. The capacity is told
// by whoever knows it (Resize), and telling it lets the waiters through in that
// very call: nothing here polls.
//
// line is the pure part: who is next, at which position, how full. Gate puts a
// mutex and channels around it. An idle gate owns neither a line nor a
// goroutine; it is a few words of memory, because there may be ten thousand.
package gate
