// Package rangelimit limits how many ranged requests to one source of weights run at once, by
// measured rates and answers of 429 and 503, bounds the bytes that duplicate (hedged) requests may
// fetch twice, and saves its measurements in a file for the next download; it sends no request.
//
//	Limiter     the slots for ranges; none is given before the time that a busy source
//	            named
//	controller  how many slots: more while that pays, fewer where the rate stays the
//	            same, and after 429 and 503
//	LinkFile    what sources were like, kept for a day: a download starts with the number
//	            of ranges that the last one ended with
package rangelimit
