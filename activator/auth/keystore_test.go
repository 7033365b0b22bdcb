package auth

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newStore(t *testing.T) (*KeyStore, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return b, path
}

func TestKeysPersist(t *testing.T) {
	b, path := newStore(t)
	if b.Required() {
		t.Fatal("a new book is empty")
	}
	s, k, err := b.Create("red", "laptop", false)
	if err != nil {
		t.Fatal(err)
	}
	s2, k2, err := b.Create("blue", "", true)
	if err != nil || !b.Required() {
		t.Fatal(err)
	}
	for _, b := range []*KeyStore{b, reopen(t, path)} {
		if id, ok := b.Lookup(s); !ok || id != (Identity{k.ID, "red", false}) {
			t.Fatalf("%+v %v", id, ok)
		}
		if id, ok := b.Lookup(s2); !ok || !id.Admin || id.Team != "blue" {
			t.Fatalf("%+v %v", id, ok)
		}
		for _, wrong := range []string{"", s + "x", s[:len(s)-1], strings.ToUpper(s), Prefix, strings.Repeat("a", 1000)} {
			if _, ok := b.Lookup(wrong); ok {
				t.Errorf("%q is no key", wrong)
			}
		}
		if len(b.List("red")) != 1 || len(b.List("")) != 2 || len(b.List("green")) != 0 {
			t.Fatal("list")
		}
	}
	data, _ := os.ReadFile(path)
	if strings.Contains(string(data), s) || strings.Contains(string(data), strings.TrimPrefix(s, Prefix)) {
		t.Fatal("the secret lies in the file")
	}
	for _, f := range []string{path, path + ".key"} {
		if info, _ := os.Stat(f); info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v", f, info.Mode())
		}
	}
	if left, _ := filepath.Glob(path + ".*.tmp"); len(left) != 0 {
		t.Fatal("left behind:", left)
	}
	if err := b.Delete(k.ID); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(k2.ID + "x"); !errors.Is(err, ErrNoKey) {
		t.Fatal(err)
	}
	if _, ok := b.Lookup(s); ok {
		t.Fatal("a deleted key ends at once")
	}
	if _, ok := reopen(t, path).Lookup(s); ok {
		t.Fatal("and stays deleted")
	}
}

// TestLastKeyEnded: a key is needed from the first one on, also after the last has ended and
// after a restart.
func TestLastKeyEnded(t *testing.T) {
	b, path := newStore(t)
	if b.Required() {
		t.Fatal("no key has existed")
	}
	_, k, err := b.Create("red", "", false)
	if err != nil || !b.Required() {
		t.Fatal(err)
	}
	if err := b.Delete(k.ID); err != nil || len(b.List("")) != 0 || !b.Required() {
		t.Error("ending the last key opens the server:", err)
	}
	if !reopen(t, path).Required() {
		t.Error("a restart opens the server")
	}
}

func reopen(t *testing.T, path string) *KeyStore {
	t.Helper()
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBadKeyFiles(t *testing.T) {
	b, path := newStore(t)
	if _, _, err := b.Create("Not A Label", "", false); err == nil {
		t.Error("team must be a label")
	}
	if _, _, err := b.Create("red", "a\nb", false); err == nil {
		t.Error("control characters in a name")
	}
	if _, _, err := b.Create("red", "", false); err != nil {
		t.Fatal(err)
	}
	whole, _ := os.ReadFile(path)
	// Each names the file and a way out that opens nothing; which works.
	wayOut := `write {"required": true} into ` + path + " and make new keys"
	check := func(name, says string) {
		t.Helper()
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), name+" is "+says) || !strings.Contains(err.Error(), wayOut) {
			t.Errorf("%s %s: %v", name, says, err)
		}
	}
	for _, bad := range []string{"", "{", "\x00\x00", string(whole[:len(whole)/2]), `{"keys":[{"id":"a","team":"x","hash":"zz"}]}`} {
		os.WriteFile(path, []byte(bad), 0o600)
		check(path, "damaged")
	}
	os.WriteFile(path, whole, 0o600)
	os.WriteFile(path+".key", nil, 0o600)
	check(path+".key", "damaged")
	os.Remove(path + ".key")
	check(path+".key", "missing")
	os.WriteFile(path, []byte(`{"required": true}`), 0o600)
	if again, err := Open(path); err != nil || !again.Required() || len(again.List("")) != 0 {
		t.Error("the way out:", err)
	}
	os.WriteFile(path+".key", []byte("short"), 0o600)
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "remove it: the next start makes a new one") {
		t.Error("no keys, and a damaged HMAC key:", err)
	}
}

// A key that cannot be written does not exist.
func TestCreateNeedsTheDisk(t *testing.T) {
	b, path := newStore(t)
	os.RemoveAll(filepath.Dir(path))
	os.WriteFile(filepath.Dir(path), nil, 0o600) // a file where the folder was
	if _, _, err := b.Create("red", "", false); err == nil || b.Required() {
		t.Fatal("a key that is not on disk must not work")
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	a, err := AdminToken(dir)
	if err != nil || len(a) < 40 {
		t.Fatal(a, err)
	}
	if again, _ := AdminToken(dir); again != a {
		t.Fatal("made once")
	}
	b, _ := newStore(t)
	b.Trust(a)
	if id, ok := b.Lookup(a); !ok || !id.Admin || b.Required() || len(b.List("")) != 0 {
		t.Fatal("the admin token is no key", id, ok)
	}
	if _, _, err := b.Create("red", "", false); err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Lookup(a); !ok {
		t.Fatal("making a key must not lock the admin out")
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		os.Chmod(filepath.Join(dir, "admin-token"), mode)
		AdminToken(dir)
		if info, _ := os.Stat(filepath.Join(dir, "admin-token")); info.Mode().Perm() != 0o600 {
			t.Errorf("it had mode %o and has %o", mode, info.Mode().Perm())
		}
	}
	for _, bad := range []string{"", "short"} {
		os.WriteFile(filepath.Join(dir, "admin-token"), []byte(bad), 0o600)
		if _, err := AdminToken(dir); err == nil || !strings.Contains(err.Error(), "admin-token is damaged: it holds no secret (remove it:") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestBearer(t *testing.T) {
	for in, want := range map[string]string{"Bearer x": "x", "bearer  y ": "y", "Basic x": "", "Bearer": "", "": "", "Bearerx": ""} {
		if got := Bearer(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	path := filepath.Join(b.TempDir(), "keys.json")
	bk, _ := Open(path)
	s, _, _ := bk.Create("red", "", false)
	b.ReportAllocs()
	for b.Loop() {
		bk.Lookup(s)
	}
}
