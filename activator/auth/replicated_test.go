package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"
)

func TestReplicatedKeyStore(t *testing.T) {
	b := NewReplicatedKeyStore()
	b.Trust("admin-secret")
	sum := sha256.Sum256([]byte("sk-thaw-one"))
	one := StoredKey{Key{ID: "1", Team: "a"}, hex.EncodeToString(sum[:])}
	if err := b.Set([]StoredKey{one, {Key{ID: "2", Team: "b"}, "xyz"}}); err == nil {
		t.Error("a damaged hash is taken")
	}
	if id, ok := b.Lookup("sk-thaw-one"); !ok || id.Team != "a" || id.Admin {
		t.Errorf("%+v %v", id, ok)
	}
	if id, ok := b.Lookup("admin-secret"); !ok || !id.Admin {
		t.Errorf("%+v %v", id, ok)
	}
	if _, ok := b.Lookup("xyz"); ok || !b.Required() || len(b.List("")) != 1 {
		t.Error("a key that is none")
	}
	if _, _, err := b.Create("a", "", false); !errors.Is(err, ErrReplicated) {
		t.Error(err)
	}
	if err := b.Delete("1"); !errors.Is(err, ErrReplicated) {
		t.Error(err)
	}
	if err := b.Set(nil); err != nil {
		t.Error(err)
	}
	if _, ok := b.Lookup("sk-thaw-one"); ok || b.Required() {
		t.Error("a key outlives its removal")
	}
}
