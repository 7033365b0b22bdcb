package trace

import (
	"iter"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Request is one arrival. A trace is an iter.Seq2[Request, error] in the order
// of At; an error ends it.
type Request struct {
	At       time.Duration  // since the trace's begin
	Function functions.Name // as the trace names it
	Team     string         // who asks; empty: the function's own team
	Input    int            // tokens of the prompt; 0 unknown
	Output   int            // tokens of the answer; 0 unknown
	Patience time.Duration  // the client leaves if nothing has come by then; 0 never
}

// Requests is a trace: in time order, ended by its first error.
type Requests = iter.Seq2[Request, error]
