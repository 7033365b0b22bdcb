package nodeloader

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// verify requests the verification of a checkpoint, and returns the answer.
func (c *caller) verify(id int, digest string) controlstream.Verified {
	c.t.Helper()
	c.send(controlstream.FromPod{Verify: &controlstream.Verify{ID: id, Digest: digest}})
	for {
		if m := c.receive(); m.Verified != nil {
			return *m.Verified
		}
	}
}

// damage flips a bit of a stored file.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{b[len(b)/2] ^ 1}, int64(len(b)/2)); err != nil {
		t.Fatal(err)
	}
}

// TestVerifyForPod: a pod has its checkpoint read again. If it is damaged it is removed, and
// staging it again fetches the damaged file alone and holds the new checkpoint.
func TestVerifyForPod(t *testing.T) {
	l := newLab(t, func(_ *Options, _ *nodestore.Options, mem *sourcetest.Memory) {
		aModel(mem, "mem://models/other", 50_000, 2)
	})
	first, second, stranger := l.pod("u1"), l.pod("u2"), l.pod("u3")
	first.want(1, modelLocation)
	second.want(1, modelLocation)
	got := first.staged(1)
	second.staged(1)
	if v := first.verify(1, got.Digest); v != (controlstream.Verified{ID: 1}) {
		t.Errorf("undamaged: %+v", v)
	}
	for _, digest := range []string{got.Digest, "sha256:0", "", "../.."} {
		if v := stranger.verify(3, digest); v.ID != 3 || v.Damaged || v.Error != "the pod does not hold this checkpoint" {
			t.Errorf("%q of another pod: %+v", digest, v)
		}
	}
	weights := filepath.Join(got.Path, "model.safetensors")
	want, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	damage(t, weights)
	read := l.store.Stats().Bytes["mem"]
	for i, p := range []*caller{first, second} {
		if v := p.verify(1, got.Digest); !v.Damaged || v.Error == "" {
			t.Errorf("pod %d, damaged: %+v", i+1, v)
		}
	}
	if _, err := os.Stat(got.Path); !os.IsNotExist(err) {
		t.Errorf("the damaged checkpoint stays: %v", err)
	}
	first.want(2, modelLocation)
	again := first.staged(2)
	if b, err := os.ReadFile(filepath.Join(again.Path, "model.safetensors")); err != nil || !bytes.Equal(b, want) ||
		again.Digest != got.Digest {
		t.Errorf("staged again: %s, %v", again.Digest, err)
	}
	if n := l.store.Stats().Bytes["mem"] - read; int(n) != len(want) {
		t.Errorf("%d bytes fetched again, the damaged file has %d", n, len(want))
	}
	if !l.inUse(again.Digest) {
		t.Error("the checkpoint that was staged again is not held")
	}
	if v := first.verify(2, again.Digest); v != (controlstream.Verified{ID: 2}) {
		t.Errorf("after it was staged again: %+v", v)
	}
	first.Close()
	l.eventually("the checkpoint is let go", func() bool { return !l.inUse(again.Digest) })
}

// TestOneVerificationAtATime: the node reads for one pod after another, and a pod that asks
// again meanwhile is refused. A pod that ends does not wait.
func TestOneVerificationAtATime(t *testing.T) {
	l := newLab(t, nil)
	p := l.pod("u1")
	p.want(1, modelLocation)
	got := p.staged(1)
	l.reading <- struct{}{} // another pod's
	p.send(controlstream.FromPod{Verify: &controlstream.Verify{ID: 1, Digest: got.Digest}})
	if v := p.verify(1, got.Digest); v.Damaged || v.Error != "a checkpoint of this pod is being verified already" {
		t.Errorf("%+v", v)
	}
	<-l.reading
	if m := p.receive(); m.Verified == nil || *m.Verified != (controlstream.Verified{ID: 1}) {
		t.Errorf("when the other has ended: %+v", m)
	}
	l.reading <- struct{}{}
	p.send(controlstream.FromPod{Verify: &controlstream.Verify{ID: 1, Digest: got.Digest}})
	p.Close()
	l.eventually("the checkpoint is let go", func() bool { return !l.inUse(got.Digest) })
	<-l.reading
}
