package loader_test

import (
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// BenchmarkStage is bytes from a server on this machine to a published,
// verified checkpoint, server included.
func BenchmarkStage(b *testing.B) {
	srv := azuretest.New(b)
	body := weights(512<<20, 1)
	for name, put := range map[string]func(){
		"md5":   func() { srv.Put("m/model.safetensors", body) },
		"nomd5": func() { srv.PutAs("m/model.safetensors", body, nil, "") },
	} {
		b.Run(name, func(b *testing.B) {
			put()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				st, err := store.Open(store.Options{Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				src := azure.New(azure.Options{Getenv: srv.Getenv})
				l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"az": src}})
				s, err := l.Stage(b.Context(), azuretest.Location("m"), loader.StageOptions{})
				if err != nil {
					b.Fatal(err)
				}
				c, err := s.Wait(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				c.Lease.Release()
				s.Release()
				l.Close()
				src.Close()
			}
		})
	}
}
