// Package cache is the exact cache of a Router or a Model: looked up once the function is chosen,
// it keeps a team's whole answers in memory and replays them to equal requests, streamed or not.
//
// A key is the team (or the caller's key), the function after routing with its file, the
// adapter, the endpoint, and the canonical body without the members that change no answer.
// An answer is kept once it is whole and a success; it is replayed in the form that was
// asked for, under the id of the request. Answers are held in memory, the least recently
// used are dropped where they need more than the budget.
package cache
