// Package forecast predicts each function's next use from its History (idle times, time of day,
// functions used before it) and how long a start takes (StartTimes), returns how long to keep it
// READY and when to start it ahead, and counts the GPU time of such starts (Budgets); it starts
// nothing. Times are arguments: it reads no clock and starts no goroutine, and its only I/O is the
// file of the history (File). One goroutine owns a History.
//
// StartTimes and RateGauge hold measured starts and rates; Budgets bound the GPU time
// of starts ahead of demand. The rest of this comment is about History.
//
// # State of a function
//
// A histogram of idle times, from the end of one use to the begin of the next, after
// the hybrid histogram of Shahrad et al. (Serverless in the Wild, ATC 2020). Theirs
// has bins of a minute over four hours; this one has 32 bins to an octave, from a
// second to two weeks, so that periods of ten seconds and of a day both have a
// resolution of two percent. It stores at most 48 non-empty bins; beyond that, the two
// nearest are merged. Counts are halved every few days, so a function that changes its
// pattern is predicted by the new one within days.
//
// In addition: the quarters of an hour of the day in which it is used, the functions
// usually used soon after it (four at most), and a decaying count of uses. Together
// some hundred bytes, however much the function is used.
//
// # Predictions
//
// Every prediction comes from the past idle times that were longer than the present
// one is so far. A prior adds one idle time; at each doubling of the age, half of its
// remaining weight ends. It is all that is known of a function seen once, and weighs
// less with each observed idle time. It replaces the paper's test whether a histogram
// is representative; the standard keep-alive applies while the prior dominates.
//
// NextUse is not the likeliest moment of the next use but its price: the least
// expected holding time per use, over all horizons (the Gittins index). A function
// that is used either after two minutes or not for a day is near for two minutes, and
// then far; a median shows neither. For a periodic function price and median are the
// same. Evicting the farthest per byte comes close to eviction with knowledge of the
// future.
//
// Windows are the parts of an idle time in which keeping the function READY is worth
// the cost. The first begins at once (the keep-alive); a start ahead precedes each
// later one (the paper's prewarm window). The paper cuts at the 5th and the 99th
// percentile; here a window ends where holding costs more than the cold starts it
// saves. The caller sets the idle time that one cold start is worth (Worth).
package forecast
