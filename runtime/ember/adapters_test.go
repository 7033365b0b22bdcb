package ember

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const shippedTiny = "../../functions/shipped/tiny"

// desk is the folder of one of the shipped adapters of tiny.
func desk(t testing.TB, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../../deploy/example/switchboard/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func loadCall(t testing.TB, url, name, dir string) (int, string) {
	t.Helper()
	b, err := json.Marshal(map[string]string{"lora_name": name, "lora_path": dir})
	if err != nil {
		t.Fatal(err)
	}
	return postText(t, url+"/v1/load_lora_adapter", string(b))
}

func mustLoad(t testing.TB, url, name, dir string) {
	t.Helper()
	if code, b := loadCall(t, url, name, dir); code != 200 {
		t.Fatalf("%s: %d %s", name, code, b)
	}
}

func unloadCall(t testing.TB, url, name string) (int, string) {
	t.Helper()
	return postText(t, url+"/v1/unload_lora_adapter", `{"lora_name":"`+name+`"}`)
}

func askBody(model, question string) string {
	return fmt.Sprintf(`{"model":%q,"temperature":0,"max_tokens":48,"messages":[{"role":"user","content":%q}]}`, model, question)
}

// TestShippedAdapters: the adapters of the switchboard change the answers of tiny, the
// base's answers stay as they were, and a batch of all three answers as each alone.
func TestShippedAdapters(t *testing.T) {
	questions := []string{"Where is my invoice?", "My screen is broken.", "What is thaw?", "Count to five."}
	plain := start(t, Options{Model: shippedTiny, MaxSeqs: 1})
	url := start(t, Options{Model: shippedTiny, MaxSeqs: 6, MaxBatch: 9, MaxAdapters: 2})
	mustLoad(t, url, "billing", desk(t, "billing"))
	mustLoad(t, url, "repair", desk(t, "repair"))
	want := map[string]string{}
	for _, q := range questions {
		want[askBody("tiny", q)] = postJSON(t, plain, chatPath, askBody("tiny", q)).Choices[0].Message.Content
		for _, name := range []string{"billing", "repair"} {
			a := postJSON(t, url, chatPath, askBody(name, q))
			if a.Model != name {
				t.Errorf("an answer of %s has the model %s", name, a.Model)
			}
			want[askBody(name, q)] = a.Choices[0].Message.Content
		}
	}
	for body, sentence := range map[string]string{
		askBody("billing", questions[0]): "Billing desk. The invoice is on its way.",
		askBody("billing", questions[2]): "Billing desk. ",
		askBody("repair", questions[1]):  "Repair desk. Turn it off, wait, and turn it on again.",
		askBody("repair", questions[2]):  "Repair desk. ",
		askBody("tiny", questions[3]):    "One, two, three, four, five.",
	} {
		if !strings.HasPrefix(want[body], sentence) {
			t.Errorf("%s: %q, want %q", body, want[body], sentence)
		}
	}
	var wg sync.WaitGroup
	for body, text := range want {
		wg.Go(func() {
			r, err := http.Post(url+chatPath, "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			var a reply
			if err := json.NewDecoder(r.Body).Decode(&a); err != nil || len(a.Choices) != 1 || a.Choices[0].Message.Content != text {
				t.Errorf("%s: together %+v %v, alone %q", body, a, err, text)
			}
		})
	}
	wg.Wait()
	// Embeddings and tokens too.
	vector := func(model string) string {
		_, b := postText(t, url+"/v1/embeddings", `{"model":"`+model+`","input":"an invoice"}`)
		_, data, _ := strings.Cut(b, `"data":`)
		return data
	}
	if vector("tiny") == vector("billing") || !strings.Contains(vector("billing"), "embedding") {
		t.Error(vector("billing"))
	}
}

// TestAdapterCalls: loading and unloading answer as vLLM's calls do, slots are bounded,
// and what is loaded is listed.
func TestAdapterCalls(t *testing.T) {
	url := start(t, Options{Model: shippedTiny, MaxAdapters: 1})
	billing := desk(t, "billing")
	mustLoad(t, url, "billing", billing)
	if _, b := getText(t, url+"/v1/models"); !strings.Contains(b, `"id":"billing"`) || !strings.Contains(b, `"parent":"tiny"`) {
		t.Error(b)
	}
	if code, b := getText(t, url+"/v1/models/billing"); code != 200 || !strings.Contains(b, billing) {
		t.Error(code, b)
	}
	wide := t.TempDir()
	config, err := os.ReadFile(filepath.Join(billing, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config = []byte(strings.Replace(string(config), `"r": 4`, `"r": 32`, 1))
	if err := os.WriteFile(filepath.Join(wide, "adapter_config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, dir string
		code      int
		want      string
	}{
		{"billing", billing, 400, "already been loaded"},
		{"repair", desk(t, "repair"), 503, "unload an adapter first"},
		{"tiny", billing, 400, "name of the model"},
		{"", billing, 400, "lora_name is missing"},
		{strings.Repeat("x", 300), billing, 400, "more than 256"},
		{"repair", "", 400, "lora_path is missing"},
		{"repair", "billing", 400, "absolute"},
	} {
		if code, b := loadCall(t, url, x.name, x.dir); code != x.code || !strings.Contains(b, x.want) {
			t.Errorf("%s: %d %s", x.name, code, b)
		}
	}
	for _, x := range []struct {
		name string
		code int
		want string
	}{{"repair", 404, "cannot be found"}, {"billing", 200, "removed"}, {"billing", 404, "cannot be found"}, {"", 400, "lora_name"}} {
		if code, b := unloadCall(t, url, x.name); code != x.code || !strings.Contains(b, x.want) {
			t.Errorf("%s: %d %s", x.name, code, b)
		}
	}
	if code, b := postText(t, url+chatPath, askBody("billing", "Hello")); code != 404 || !strings.Contains(b, "model_not_found") {
		t.Error(code, b)
	}
	// A refused adapter leaves its slot free.
	for dir, want := range map[string]string{wide: "rank is 32", t.TempDir(): "no adapter_config.json"} {
		if code, b := loadCall(t, url, "bad", dir); code != 400 || !strings.Contains(b, want) {
			t.Errorf("%d %s", code, b)
		}
	}
	mustLoad(t, url, "repair", desk(t, "repair"))

	off := start(t, Options{Model: shippedTiny})
	if code, b := loadCall(t, off, "billing", billing); code != 400 || !strings.Contains(b, "--enable-lora") {
		t.Error(code, b)
	}
}

// TestUnloadWhileRunning: a sequence keeps its adapter until it ends, and the next
// sequence in its cache does not have it.
func TestUnloadWhileRunning(t *testing.T) {
	url := start(t, Options{Model: shippedTiny, MaxSeqs: 1, MaxAdapters: 1, TokenDelay: 5 * time.Millisecond})
	mustLoad(t, url, "desk", desk(t, "billing"))
	want := postJSON(t, url, chatPath, askBody("desk", "Where is my invoice?")).Choices[0].Message.Content
	base := postJSON(t, url, chatPath, askBody("tiny", "Where is my invoice?")).Choices[0].Message.Content
	stream := strings.Replace(askBody("desk", "Where is my invoice?"), `{`, `{"stream":true,`, 1)
	r, err := http.Post(url+chatPath, "application/json", strings.NewReader(stream))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	// The head of the answer is here, so the sequence runs.
	if code, b := unloadCall(t, url, "desk"); code != 200 {
		t.Fatal(code, b)
	}
	mustLoad(t, url, "desk", desk(t, "repair"))
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	rs, done := events(t, string(b))
	for _, e := range rs {
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content != nil {
			got += *e.Choices[0].Delta.Content
		}
	}
	if got != want || !done || want == base {
		t.Errorf("%q, before %q, the base %q", got, want, base)
	}
	if now := postJSON(t, url, chatPath, askBody("tiny", "Where is my invoice?")).Choices[0].Message.Content; now != base {
		t.Errorf("the base answers %q, before %q", now, base)
	}
	if now := postJSON(t, url, chatPath, askBody("desk", "My screen is broken.")).Choices[0].Message.Content; !strings.HasPrefix(now,
		"Repair desk. ") {
		t.Errorf("the new adapter of that name answers %q", now)
	}
}

// BenchmarkSwap measures an adapter's way into the engine and out of it, over HTTP.
func BenchmarkSwap(b *testing.B) {
	url := start(b, Options{Model: shippedTiny, MaxAdapters: 1})
	dirs := [2]string{desk(b, "billing"), desk(b, "repair")}
	for n := 0; b.Loop(); n++ {
		mustLoad(b, url, "desk", dirs[n%2])
		unloadCall(b, url, "desk")
	}
}
