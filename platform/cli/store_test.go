package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// Two checkpoints whose digests begin alike, and an unfinished download.
const (
	llamaDigest = "sha256:aaaa111111111111111111111111111111111111111111111111111111111111"
	otherDigest = "sha256:aaaa222222222222222222222222222222222222222222222222222222222222"
	partName    = "part:cccc3333333333333333333333333333"
)

// stores are those of two nodes, of which one does not answer.
type stores struct{}

func (stores) Cached(_ context.Context, node string) ([]functions.CacheEntry, []string, error) {
	if node == "nowhere" {
		return nil, nil, &functions.StoreError{Code: functions.CodeNoNode, Message: "there is no node nowhere"}
	}
	return []functions.CacheEntry{
		{Node: "here", Digest: llamaDigest, Source: "az://acct/models/llama", Path: "/store/l", Files: 3, Bytes: 16 << 30, LastUsed: began, Created: began, InUse: true},
		{Node: "here", Digest: partName, Source: "s3://b/models/cut", Path: "/store/p", Files: 1, Bytes: 300 << 20, LastUsed: began, Created: began},
		{Node: "here", Digest: otherDigest, Source: "az://acct/models/\x1b[31mother", Path: "/store/o", Files: 2, Bytes: 1 << 20, LastUsed: began, Created: began, Pinned: true},
	}, []string{"there"}, nil
}

func (stores) ChangeCheckpoint(_ context.Context, node, digest string, act functions.StoreAction) ([]string, error) {
	if act != functions.StoreRemove && digest == partName {
		return nil, &functions.StoreError{Code: functions.CodeNotCached, Message: "an unfinished download can only be removed"}
	}
	if act == functions.StoreRemove && digest == llamaDigest {
		return nil, &functions.StoreError{Code: functions.CodeInUse, Message: "checkpoint aaaa1111 is in use (stop the models that use it first)"}
	}
	return []string{"here"}, nil
}

func (stores) VerifyCheckpoint(_ context.Context, node, digest string, tell func(functions.StoreProgress)) error {
	tell(functions.StoreProgress{Node: "here", State: "verifying", Total: 1 << 20})
	if digest == otherDigest {
		tell(functions.StoreProgress{Node: "here", State: "failed",
			Error: &functions.StoreError{Code: "digest_mismatch", Message: "the stored file is not what came"}})
		return nil
	}
	tell(functions.StoreProgress{Node: "here", State: "ready", Percent: 100, Total: 1 << 20})
	return nil
}

func (stores) Prefetch(_ context.Context, _ string, r functions.PrefetchRequest, tell func(functions.StoreProgress)) error {
	if strings.HasPrefix(r.Source, "nosuch:") {
		return &functions.StoreError{Code: "bad_source", Message: "the scheme \"nosuch\" is not known here"}
	}
	const node = "here"
	tell(functions.StoreProgress{Node: node, State: "fetching", Percent: 25, Done: 1 << 20, Total: 4 << 20, Rate: 1 << 20})
	if strings.HasSuffix(r.Source, "/gone") {
		tell(functions.StoreProgress{Node: node, State: "failed", Error: &functions.StoreError{Code: "source_denied", Message: "403"}})
		return nil
	}
	tell(functions.StoreProgress{Node: node, State: "ready", Percent: 100, Done: 4 << 20, Total: 4 << 20, Path: "/store/x",
		Digest: llamaDigest})
	return nil
}

func TestCacheVerbs(t *testing.T) {
	s := start(t)
	for _, line := range []string{
		"cache ls", "cache ls -o wide", "cache ls -o json", "cache ls -o name", "cache verify --all", "cache verify llama -o json",
		"cache pin aaaa2", "cache unpin sha256:aaaa2", "cache rm aaaa2",
		"prefetch llama", "prefetch llama -o json", "pull llama", "pull az://acct/models/x -q",
	} {
		out, errs, _ := s.thaw(t, "", strings.Fields(line)...)
		if strings.ContainsAny(out+errs, "\x1b\r") {
			t.Errorf("thaw %s commands the terminal", line)
		}
		text := "$ thaw " + line + "\n" + out
		if errs != "" {
			text += "--- stderr\n" + errs
		}
		s.golden(t, unsafeName.ReplaceAllString(line, "_")+".txt", text)
	}
	for _, tt := range []struct {
		line string
		exit int
		says string
	}{
		{"cache", kit.ExitOK, ""},
		{"cache lsx", kit.ExitUsage, "did you mean ls?"},
		{"cache ls --node nowhere", kit.ExitNotFound, "no node nowhere"},
		{"cache rm", kit.ExitUsage, "is missing"},
		{"cache rm llama", kit.ExitFailed, "is in use"},
		{"cache rm lama", kit.ExitNotFound, "did you mean llama?"},
		{"cache rm aaaa", kit.ExitUsage, "names more than one"},
		{"cache rm aaa", kit.ExitNotFound, "no checkpoint is named"},
		{"cache rm cut", kit.ExitOK, ""},
		{"cache rm s3://b/models/cut", kit.ExitOK, ""},
		{"cache rm part:cccc33", kit.ExitOK, ""},
		{"cache rm x:cccc33", kit.ExitNotFound, "no checkpoint is named"},
		{"cache pin cut", kit.ExitNotFound, "no checkpoint is named cut"},
		{"cache verify cut", kit.ExitNotFound, "no checkpoint is named cut"},
		{"cache verify", kit.ExitUsage, "--all"},
		{"cache verify llama --all", kit.ExitUsage, "--all"},
		{"cache verify aaaa2", kit.ExitFailed, "not what came"},
		{"prefetch", kit.ExitUsage, "is missing"},
		{"prefetch lama", kit.ExitNotFound, "did you mean llama?"},
		{"prefetch nosuch://x", kit.ExitUsage, "not known here"},
		{"prefetch az://acct/models/gone", kit.ExitDenied, "403"},
		{"prefetch ./here", kit.ExitUsage, "does not know which folder"},
		{"prefetch llama -o yaml", kit.ExitUsage, "no form of output"},
		{"pull llama --store 1Gi", kit.ExitUsage, "with --data"},
		{"--server http://127.0.0.1:1 pull llama", kit.ExitUnavailable, "hint: start one"},
	} {
		_, errs, exit := s.thaw(t, "", strings.Fields(tt.line)...)
		if exit != tt.exit || !strings.Contains(errs, tt.says) {
			t.Errorf("thaw %s: exit %d, %s", tt.line, exit, errs)
		}
	}
}

// localRun is the store of this machine, for verbs without a server.
type localRun struct {
	stores
	asked  functions.PrefetchRequest
	opened LocalStoreOptions
	closed int
	hang   bool
}

func (l *localRun) Cached(ctx context.Context) ([]functions.CacheEntry, error) {
	list, _, err := l.stores.Cached(ctx, "")
	for i := range list {
		list[i].Node = ""
	}
	return list, err
}

func (l *localRun) ChangeCheckpoint(ctx context.Context, digest string, act functions.StoreAction) error {
	_, err := l.stores.ChangeCheckpoint(ctx, "", digest, act)
	return err
}

func (l *localRun) VerifyCheckpoint(ctx context.Context, digest string, tell func(functions.StoreProgress)) error {
	return l.stores.VerifyCheckpoint(ctx, "", digest, func(p functions.StoreProgress) { p.Node = ""; tell(p) })
}

func (l *localRun) Prefetch(ctx context.Context, r functions.PrefetchRequest, tell func(functions.StoreProgress)) error {
	l.asked = r
	if l.hang {
		tell(functions.StoreProgress{State: "fetching"})
		<-ctx.Done()
		return ctx.Err()
	}
	return l.stores.Prefetch(ctx, "", r, func(p functions.StoreProgress) { p.Node = ""; tell(p) })
}

func (l *localRun) Close() { l.closed++ }

// runLocal runs a verb where no server is.
func runLocal(ctx context.Context, h *localRun, env map[string]string, args ...string) (out, errs string, exit int) {
	var o, e strings.Builder
	exit = Main(ctx, args, strings.NewReader(""), &o, &e, Programs{
		Getenv: func(k string) string { return env[k] }, Now: func() time.Time { return noon },
		OpenStore: func(o LocalStoreOptions) (LocalStore, error) {
			if strings.HasSuffix(o.Data, "broken") {
				return nil, &functions.StoreError{Code: "store_failed", Message: "the store's disk: read-only"}
			}
			h.opened = o
			return h, nil
		},
	})
	return o.String(), e.String(), exit
}

func TestPullHere(t *testing.T) {
	dir := t.TempDir()
	for name, body := range map[string]string{"functions/m.yaml": shipped, "data/functions/n.yaml": strings.NewReplacer("tiny", "late", "./late", "az://acct/late").Replace(strings.Split(shipped, "---")[0])} {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, folder := filepath.Join(dir, "data"), filepath.Join(dir, "functions")
	env := map[string]string{"HOME": dir}
	for _, tt := range []struct {
		line   string
		exit   int
		says   string // on stderr
		last   string // line of stdout
		source string
	}{
		{"pull az://acct/models/x --data " + data, kit.ExitOK, "fetching", "/store/x", "az://acct/models/x"},
		{"pull ml/llama --data " + data + " --functions " + folder, kit.ExitOK, "", "/store/x", "az://acct/models/llama"},
		{"pull tiny --data " + data + " --functions " + folder, kit.ExitOK, "", "/store/x", "./tiny"},
		{"pull late --data " + data, kit.ExitOK, "", "/store/x", "./late"},
		{"pull lama --data " + data + " --functions " + folder, kit.ExitNotFound, "no model file here says what lama is", "", ""},
		{"pull tiny --data " + data, kit.ExitNotFound, "--functions DIR", "", ""},
		{"pull A_B --data " + data, kit.ExitUsage, "is no function name", "", ""},
		{"pull Qwen/Qwen2.5-0.5B --data " + data, kit.ExitUsage, "a URL such as hf://ORG/REPO", "", ""},
		{"pull hf.co/o/r:Q4_K_M --data " + data, kit.ExitUsage, `did you mean hf://o/r, with weights: "*Q4_K_M*"`, "", ""},
		{`pull C:\models\x --data ` + data, kit.ExitUsage, "paths of Windows are not read", "", ""},
		{"pull nosuch://x --data " + data, kit.ExitUsage, "not known here", "", ""},
		{"pull az://acct/models/gone --data " + data, kit.ExitDenied, "403", "", ""},
		{"pull az://acct/x --data " + filepath.Join(dir, "broken"), kit.ExitFailed, "read-only", "", ""},
		{"pull az://acct/x --node n --data " + data, kit.ExitUsage, "--node is a server's", "", ""},
		{"pull az://acct/models/x --peer https://n:1 --peer https://m:2/ --certs t --data " + data, kit.ExitOK, "", "/store/x", "az://acct/models/x"},
		{"pull az://acct/x --peer https://n:1 --data " + data, kit.ExitUsage, "certificate that nodes show", "", ""},
		{"pull az://acct/x --peer n:1 --certs t --data " + data, kit.ExitUsage, "is not the address of a node", "", ""},
		{"pull az://acct/x --peer http://n:1 --certs t --data " + data, kit.ExitUsage, "is not the address of a node", "", ""},
		{"pull az://acct/x --peer https://u:p@n:1 --certs t --data " + data, kit.ExitUsage, "is not the address of a node", "", ""},
		{"pull az://acct/x --peer https://n:1", kit.ExitUsage, "with --data", "", ""},
		{"pull hf://o/r --files *.py --files a/*.bin --data " + data, kit.ExitOK, "", "/store/x", "hf://o/r"},
		{"pull hf://o/r --files ../x --data " + data, kit.ExitUsage, "leaves the source's folder", "", ""},
		{"pull tiny --files *.py --functions " + folder + " --data " + data, kit.ExitUsage, "--files goes with a SOURCE", "", ""},
		{"pull az://acct/x --store 1x --data " + data, kit.ExitUsage, "is no size", "", ""},
		{"pull az://acct/x --data=", kit.ExitUsage, "--data is empty", "", ""},
		{"pull az://acct/x -o wide --data " + data, kit.ExitUsage, "no form of output", "", ""},
		{"cache ls --data " + data, kit.ExitOK, "", "aaaa22222222  1 MiB    -     1m0s ago  pinned      az://acct/models/\\x1b[31mother", ""},
		{"cache rm aaaa2 --data " + data, kit.ExitOK, "", "aaaa22222222 removed", ""},
		{"cache rm llama --data " + data, kit.ExitFailed, "in use", "", ""},
		{"cache pin llama --node n --data " + data, kit.ExitUsage, "--node is a server's", "", ""},
		{"cache verify aaaa2 --data " + data, kit.ExitFailed, "not what came", "aaaa22222222 FAILED", ""},
	} {
		h := &localRun{}
		out, errs, exit := runLocal(t.Context(), h, env, strings.Fields(tt.line)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if exit != tt.exit || !strings.Contains(errs, tt.says) || lines[len(lines)-1] != tt.last ||
			tt.source != "" && h.asked.Source != tt.source {
			t.Errorf("thaw %s: exit %d\n%s--- stderr\n%sasked for %+v", tt.line, exit, out, errs, h.asked)
		}
		if h.asked.Source == "hf://o/r" && strings.Join(h.asked.Files, " ") != "*.py a/*.bin" {
			t.Errorf("thaw %s: files %q", tt.line, h.asked.Files)
		}
		if n := strings.Count(tt.line, "--peer https"); exit == kit.ExitOK && (len(h.opened.Peers) != n || n > 0 && h.opened.Certs != "t") {
			t.Errorf("thaw %s: opened with %+v", tt.line, h.opened)
		}
		if h.asked.Source == "./tiny" && h.asked.Dir != folder {
			t.Errorf("a source beside its model file is looked for in %q", h.asked.Dir)
		}
	}
}

// TestPullInterrupted: it says that nothing is lost, and by which code it ended.
func TestPullInterrupted(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { stop(errors.New("interrupt")) })
	h := &localRun{hang: true}
	out, errs, exit := runLocal(ctx, h, nil, "pull", "az://acct/x", "--data", t.TempDir())
	if exit != kit.ExitInterrupted || out != "" || !strings.Contains(errs, "goes on from there") || h.closed != 1 {
		t.Errorf("exit %d\n%s%s", exit, out, errs)
	}
	h = &localRun{hang: true}
	if _, errs, exit = runLocal(t.Context(), h, nil, "pull", "az://acct/x", "--timeout", "20ms", "--data",
		t.TempDir()); exit != kit.ExitTimeout || !strings.Contains(errs, "not done within 20ms") {
		t.Errorf("exit %d\n%s", exit, errs)
	}
}
