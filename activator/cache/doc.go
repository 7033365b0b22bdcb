// Package cache keeps whole successful answers in memory, for each team (or key) and function, and
// replays them, streamed or not, to requests whose bodies are equal in all that changes an answer;
// it is looked up after routing, where a Router or Model turns it on, and does not compare
// meanings.
//
// A key is the team (or the caller's key), the function after routing with its file, the
// adapter, the endpoint, and the canonical body without the members that change no answer.
// An answer is kept once it is whole and a success; it is replayed in the form that was
// asked for, under the id of the request. Answers are held in memory, the least recently
// used are dropped where they need more than the budget.
package cache
