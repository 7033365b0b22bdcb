package sourcetest_test

import (
	"testing"

	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
		const here = "memory://here"
		m := &sourcetest.Memory{}
		return sourcetest.Location{
			FolderOnly: true, Source: m, Location: here, Nowhere: "memory://nowhere",
			Put:    func(t *testing.T, name string, body []byte) { m.Put(here, name, body) },
			Delete: func(t *testing.T, name string) { m.Delete(here, name) },
		}
	})
}
