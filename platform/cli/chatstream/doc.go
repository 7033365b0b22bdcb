// Package chatstream reads the stream of a chat's answer and prints it in the terminal: text,
// reasoning, calls of tools, and the progress of a cold start; it sends no request.
package chatstream
