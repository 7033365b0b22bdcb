package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/testkit"
)

// TestLinksGrantNothing: links that an engine left in its compile cache, and links of a
// checkpoint to folders or to data of thaw, add nothing to a plan. Links of a checkpoint to
// files elsewhere do.
func TestLinksGrantNothing(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(root, name) }
	cache, shared, model := at("data/agent/caches/k/cache"), at("data/agent/caches/shared/e/modelinfos"), at("models/m")
	for _, dir := range []string{cache, shared, model, at("blobs"), at("home")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{at("data/admin-token"), at("blobs/b")} {
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		cache + "/modelinfos": shared, cache + "/a": "/", cache + "/b": at("data"), cache + "/c": at("home"), cache + "/d": at("data/admin-token"),
		model + "/weights": at("blobs/b"), model + "/a": "/", model + "/b": at("data"), model + "/c": at("home"), model + "/d": at("data/admin-token"), at("data/view"): model,
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	c := &confinement{data: at("data"), dir: at("data/agent/engines")}
	for _, path := range []string{model, at("data/view")} {
		p, err := c.plan(functions.Name{Team: "t", Name: "m"}, "r", &engine.Command{Argv: []string{"/bin/true"}}, engine.Request{Cache: cache, CacheShared: []string{shared}, Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{at("data/agent/engines/t/m/home"), cache, shared}; !slices.Equal(p.Write, want) {
			t.Errorf("may write %q, want %q", p.Write, want)
		}
		for _, want := range []string{path, model, at("blobs/b")} {
			if !slices.Contains(p.Read, want) {
				t.Errorf("%s: may not read %s", path, want)
			}
		}
		for _, other := range []string{"/", at("data"), at("home"), at("data/admin-token")} {
			if slices.Contains(p.Read, other) {
				t.Errorf("%s: may read %s", path, other)
			}
		}
	}
	for _, path := range []string{"/", root, at("data")} {
		for _, got := range c.checkpoint(path) {
			if isBelow(c.data, got) || isBelow(got, c.data) {
				t.Errorf("a checkpoint at %s: may read %s", path, got)
			}
		}
	}
}

// TestModelsHaveOwnUsers: engines of one model have one user, and no two models the same.
func TestModelsHaveOwnUsers(t *testing.T) {
	if !confine.OwnUsers() {
		testkit.Missing(t, "engines have users of their own where thaw is root")
	}
	dir := t.TempDir()
	c := &confinement{data: filepath.Join(dir, "data"), dir: dir}
	users := map[int]string{}
	for _, model := range []string{"a/x", "a/y", "b/x", "b/z"} {
		home := filepath.Join(dir, model, "home")
		user, err := c.userOf(home)
		if err != nil || !confine.IsUser(user) || users[user] != "" {
			t.Errorf("%s has the user %d, which is that of %q: %v", model, user, users[user], err)
		}
		users[user] = model
		if again, err := c.userOf(home); again != user || err != nil {
			t.Errorf("%s has the user %d and then %d: %v", model, user, again, err)
		}
	}
}

// TestPlanOfScripts: an engine has a user's name, and reads what lies beside its script; of a
// source that is one file it reads the file with its shards, not the folder.
func TestPlanOfScripts(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(root, name) }
	for _, file := range []string{"srv/main.py", "srv/helper.py", "holds/main.py", "holds/data/token", "models/s-00001-of-00002.gguf", "models/s-00002-of-00002.gguf", "models/other.gguf"} {
		if err := os.MkdirAll(filepath.Dir(at(file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &confinement{data: at("holds/data"), dir: at("engines")}
	cmd := &engine.Command{Engine: functions.EngineCommand, Argv: []string{"/bin/true"}, Env: []string{"USER=root", "HOME=/root"}}
	r := engine.Request{Path: at("models"),
		Spec: functions.ModelSpec{Engine: functions.EngineCommand, Source: at("models/s-00002-of-00002.gguf"),
			Args: []string{"python3", at("srv/main.py"), at("holds/main.py")}, Env: map[string]string{"LOGNAME": "mine"}}}
	p, err := c.plan(functions.Name{Team: "t", Name: "m"}, "r", cmd, r)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		at("srv"): true, at("srv/main.py"): true, at("holds/main.py"): true, at("holds"): false, at("models"): false,
		at("models/s-00001-of-00002.gguf"): true, at("models/s-00002-of-00002.gguf"): true, at("models/other.gguf"): false,
	} {
		if slices.Contains(p.Read, path) != want {
			t.Errorf("may read %s: %t", path, !want)
		}
	}
	home := at("engines/t/m/home")
	for _, want := range []string{"USER=thaw", "HOME=" + home} {
		if !slices.Contains(cmd.Env, want) {
			t.Errorf("no %s in %q", want, cmd.Env)
		}
	}
	if slices.Contains(cmd.Env, "LOGNAME=thaw") || slices.Contains(cmd.Env, "USER=root") {
		t.Errorf("environment %q", cmd.Env)
	}
}
