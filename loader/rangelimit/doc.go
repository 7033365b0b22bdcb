// Package rangelimit limits how many ranges are in flight to one source of weights, over
// all its stagings, and measures them.
//
//	Limiter     the slots for ranges; none is given before the time that a busy source
//	            named
//	controller  how many slots: more while that pays, fewer where the rate stays the
//	            same, and after 429 and 503
//	LinkFile    what sources were like, kept for a day: a download starts with the number
//	            of ranges that the last one ended with
package rangelimit
