package functions

import "time"

// Traffic is what thaw's own requests to an engine show of it. The zero value is that of
// an engine without any.
type Traffic struct {
	InFlight int       // requests that were sent and have not ended
	Waiting  time.Time // when the oldest of them that has no byte of its answer's body was sent; zero: none
	LastByte time.Time // when the engine last sent a byte; zero: it sent none on its open connections
}
