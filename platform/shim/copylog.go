package shim

import (
	"io"

	"github.com/thaw-dev/thaw/runtime/tail"
)

// copyLog copies the engine's log to out until ended is closed and all of the log
// was copied. path is the log's path, "" while there is none.
func copyLog(ended <-chan struct{}, path func() string, out io.Writer) {
	log := tail.New(tail.Options{Path: path, Ended: ended})
	defer log.Close()
	io.Copy(ignoreErrors{out}, log)
}

// ignoreErrors drops what its writer does not take: the container's output being
// closed must not stop the engine's log from being read.
type ignoreErrors struct{ io.Writer }

func (e ignoreErrors) Write(b []byte) (int, error) {
	e.Writer.Write(b)
	return len(b), nil
}
