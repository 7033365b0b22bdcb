package control

import (
	"time"

	"k8s.io/utils/lru"

	"github.com/thaw-dev/thaw/functions"
)

// firstTokens keeps the first_token phase of cold starts, which only activators measure:
// from READY to the first byte of the engine's answer. Its values are time.Duration, by cold
// start id.
type firstTokens struct{ *lru.Cache }

const maxFirstTokens = 1024

func newFirstTokens() firstTokens { return firstTokens{lru.New(maxFirstTokens)} }

// record stores the phase of a cold start. The first report of several activators counts.
func (f firstTokens) record(_ functions.Name, coldStart string, took time.Duration) {
	if _, ok := f.Get(coldStart); !ok && coldStart != "" {
		f.Add(coldStart, took)
	}
}

func (f firstTokens) complete(t functions.Timeline) functions.Timeline {
	if took, ok := f.Get(t.ID); ok {
		return t.WithFirstToken(took.(time.Duration))
	}
	return t
}
