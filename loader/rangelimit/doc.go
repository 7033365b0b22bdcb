// Package rangelimit limits how many ranged requests to one source of weights run at once, by its
// measured rates and answers 429 and 503, bounds duplicate ones, and keeps the result for the next
// download.
//
//	Limiter     the slots for ranges; none is given before the time that a busy source
//	            named
//	controller  how many slots: more while that pays, fewer where the rate stays the
//	            same, and after 429 and 503
//	LinkFile    what sources were like, kept for a day: a download starts with the number
//	            of ranges that the last one ended with
package rangelimit
