// Package forecast predicts when functions are used next and how long their starts
// take, from what was measured. Times are arguments: it reads no clock and starts no
// goroutine, and its only I/O is the file of the history (File). One goroutine owns a
// History.
//
// StartTimes and RateGauge hold measured starts and rates; Budgets bound the GPU time
// of starts ahead of demand. The rest of this comment is about History.
//
// # What is kept of a function
//
// The hybrid histogram of Shahrad et al. (Serverless in the Wild, ATC 2020): how
// long its idle times were, from the end of one use to the begin of the next.
// Theirs has one bin a minute and four hours; this one has 32 to an octave from a
// second to two weeks, so that a rhythm of ten seconds and one of a day are both
// held to two percent, and keeps only bins that are not empty, at most 48 of
// them. Where there are more, the two that are nearest become one. Old counts
// fade: a function that changes its habits is known by the new ones within days.
//
// Beside it: at which times of the day it is used and on how many of the last
// days, what is usually used soon after it (four at most), and how often it was
// used, long ago counting less. All together some hundred bytes; a function in
// use by thousands of clients takes no more than one used twice.
//
// # What is said of the future
//
// Every answer comes from one question: of the idle times that were longer than
// the present one has lasted, how did they end? Every function also gets one
// imagined idle time, spread evenly over octaves, half of it never ending: that
// is all that is known of a function seen once, and it weighs less the more is
// known (the paper's check whether a histogram is representative, as a matter of
// degree; the paper's standard keep-alive is what is used where the imagined one
// weighs most).
//
// NextUse is not the likeliest moment of the next use but the price of waiting
// for it: the shortest time of holding the function that buys one use, over all
// horizons (the index of Gittins). A function that is used after two minutes or
// else not for a day is near, two minutes long, and then far at once; its median
// says neither. For a function on a clock both are the same. Evicting the
// farthest per byte comes near to evicting with knowledge of the future.
//
// Windows are the stretches of an idle time in which holding it is worth its
// price: the first one begins at once (the keep-alive), later ones are preceded
// by a start ahead (the prewarm window of the paper). The paper cuts the head at
// the 5th and the tail at the 99th percentile; here a cut is where the time held
// costs more than the cold starts it saves, at a price the caller names: so much
// idle time for one cold start.
package forecast
