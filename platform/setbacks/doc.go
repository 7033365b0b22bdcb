// Package setbacks computes two things for a function: the pause before its next start, from its
// failed starts in a row, and how long to keep its replicas, if it was needed again soon after they
// were evicted; the caller applies both.
package setbacks
