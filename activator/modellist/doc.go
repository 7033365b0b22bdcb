// Package modellist is the form of OpenAI's list of models. It reads snapshots and wakes
// nothing: consoles poll it.
package modellist
