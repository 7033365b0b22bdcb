// Package chatstream prints the streamed answer of a chat: its text, what it holds beside
// it, and the progress of the cold start that it waits for.
package chatstream
