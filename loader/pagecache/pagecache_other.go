//go:build !linux

package pagecache

import (
	"errors"
	"os"
)

// Other systems have the calls under other names, or not; thaw's nodes are
// Linux, and a laptop has one user who knows.
const supported = false

var errUnknown = errors.New("not known on this system")

func measureCached(*os.File, int64, int64) (int64, error) { return 0, errUnknown }

func adviseWillNeed(*os.File, int64, int64) error { return errUnknown }
